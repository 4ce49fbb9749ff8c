// A self-checked exercise. A typed answer is compared here exactly as kvlib.explore.exercise.check_answer does; a test holds
// the two together. A setting is judged by Python.
(() => {
  "use strict";
  const { make, freshId, states, loadStates, copyLink, python, makers } = window.kv;

  function parseNumber(text, unit) {
    const typed = text.trim();
    const bare = unit && unit !== "%" && typed.endsWith(unit) ? typed.slice(0, -unit.length) : typed;
    const short = bare.replace(/[,_ ]/g, "");
    const percent = short.endsWith("%");
    const digits = percent ? short.slice(0, -1) : short;
    const value = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(digits) ? Number(digits) : NaN;
    return percent && unit !== "%" ? value / 100 : value;
  }

  const close = (given, wanted, tolerance) => Math.abs(given - wanted) <= (tolerance + 1e-12) * Math.abs(wanted);

  function howFar(given, wanted) {
    if (wanted === 0 || given * wanted <= 0) return "Not yet: the sign or the zero is wrong.";
    const ratio = given / wanted, side = ratio > 1 ? "high" : "low", factor = Math.max(ratio, 1 / ratio);
    const four = (x) => Number(x.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 10 });
    return factor >= 1.5 ? `Not yet: too ${side} by a factor of ${four(factor)}.` : `Not yet: too ${side} by ${four(Math.abs(ratio - 1) * 100)} %.`;
  }

  function checkAnswer({ answer, tolerance, slips, unit }, text) {
    const given = parseNumber(text, unit);
    if (!Number.isFinite(given)) return { right: false, reply: `answer: got '${text}', expected a number such as 1200, 1.2e3 or 44 %` };
    if (close(given, answer, tolerance)) return { right: true, reply: "Right." };
    const slip = slips.find(({ value }) => close(given, value, Math.max(tolerance, 0.005)));
    return { right: false, reply: slip ? slip.reply : howFar(given, answer) };
  }
  window.kvCheckAnswer = checkAnswer;

  class Exercise {
    constructor(section) {
      this.section = section;
      const data = JSON.parse(section.querySelector("script").textContent);
      this.id = data.id;
      this.kind = data.kind;
      this.form = section.querySelector(".kv-controls");
      this.reply = section.querySelector(".kv-reply");
      this.form.addEventListener("submit", (event) => { event.preventDefault(); this.check(); });
      this.put(data.seed, data.problem);
      section.kv = this;
    }

    say(words) { this.reply.textContent = words; }

    async load(seed) {
      await loadStates(this.id);
      try {
        const drawn = states.get(this.id)?.[seed - 1] ?? await python.call("exercise", this.id, { seed });
        if (drawn.error) this.say(drawn.error);
        else this.put(seed, drawn);
      } catch (error) {
        this.say(`live mode unavailable (${error.message})`);
      }
    }

    // Some seeds draw what the one before drew; a reader who asks for other numbers gets others.
    async drawAnother() {
      const { question } = this.problem;
      for (let tries = 0; tries < 12 && this.problem.question === question; tries++) {
        const { seed } = this;
        await this.load(seed + 1);
        if (this.seed === seed) return;
      }
      this.other.focus();
    }

    put(seed, problem) {
      this.seed = seed;
      this.problem = problem;
      this.section.querySelector(".kv-question").textContent = problem.question;
      this.section.querySelector(".kv-solution p").textContent = problem.solution;
      this.section.querySelector(".kv-solution").open = false;
      this.say("");
      this.form.replaceChildren(...(this.kind === "number" ? this.answerField() : this.searchControls()), this.buttons());
    }

    answerField() {
      this.input = make("input", { type: "text", inputmode: "decimal", id: freshId(), autocomplete: "off" });
      const unit = make("span", { class: "kv-unit" }, this.problem.unit);
      return [make("div", { class: "kv-control" }, make("label", { for: this.input.id }, "Your answer"), this.input, unit)];
    }

    searchControls() {
      this.controls = this.problem.controls.map((spec) => makers[spec.kind](spec, () => this.say("")));
      return this.controls.map((control) => control.element);
    }

    buttons() {
      const check = make("button", { type: "submit" }, "Check");
      const other = make("button", { type: "button" }, "Other numbers");
      other.addEventListener("click", () => this.drawAnother());
      this.other = other;
      const link = make("button", { type: "button" }, "Link to this state");
      link.addEventListener("click", () => copyLink(link, this.id, { seed: this.seed }));
      return make("div", { class: "kv-buttons" }, check, other, link);
    }

    async check() {
      const { right, reply } = this.kind === "number" ? checkAnswer(this.problem, this.input.value) : await this.judge();
      this.say(`${right ? "✓" : "✗"} ${reply}`);
    }

    async judge() {
      this.say("Python is running this setting …");
      const params = Object.fromEntries(this.problem.controls.map((spec, i) => [spec.name, this.controls[i].read()]));
      try {
        const verdict = await python.call("exercise", this.id, { seed: this.seed, params });
        return verdict.error ? { right: false, reply: verdict.error } : verdict;
      } catch (error) {
        return { right: false, reply: `live mode unavailable (${error.message})` };
      }
    }

    restoreFrom(parts) {
      const seed = Number(parts.get("seed"));
      if (Number.isInteger(seed) && seed > 0) this.load(seed);
      else this.say(`The link's seed “${parts.get("seed") ?? ""}” is no whole number from 1 on, so these are the first numbers.`);
    }
  }

  window.kv.Exercise = Exercise;
})();
