// Brings the explorers and exercises of a page to life. The pictures and numbers all come from kvlib:
// precomputed in explorers/<id>.js, or computed by the worker. Nothing is calculated here but the
// comparison of a typed answer (the same as kvlib.explore.exercise.check_answer; a test holds the two together).
(() => {
  "use strict";
  const here = new URL(".", document.currentScript.src);
  const settings = { plotly: "kv/plotly.min.js", pyodide: ["kv/pyodide/"], ...window.KV_SETTINGS };
  const local = (path) => new URL(path, here).href;

  // ---------------------------------------------------------------- small helpers

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name in element && typeof value !== "string") element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  const scripts = new Map();
  function loadScript(url) {
    if (!scripts.has(url)) {
      scripts.set(url, new Promise((done, failed) => {
        const script = make("script", { src: url });
        script.onload = done;
        script.onerror = () => failed(new Error(`${url} did not load`));
        document.head.append(script);
      }));
    }
    return scripts.get(url);
  }

  const states = new Map();
  window.kvStates = (id, value) => states.set(id, value);
  const loadStates = (id) => loadScript(local(`kv/explorers/${id}.js`)).catch(() => {});

  // The fragment "#kv=<id>&name=value&seed=3" restores one item's controls.
  function fragment() {
    const parts = new URLSearchParams(location.hash.slice(1));
    const id = parts.get("kv");
    parts.delete("kv");
    return { id, parts };
  }

  function share(id, values) {
    const parts = new URLSearchParams({ kv: id, ...values });
    history.replaceState(null, "", "#" + parts);
    return location.href;
  }

  async function copyLink(button, id, values) {
    const link = share(id, values);
    try {
      await navigator.clipboard.writeText(link);
      button.textContent = "Link copied";
    } catch {
      button.textContent = "Link is in the address bar";
    }
    setTimeout(() => (button.textContent = "Link to this state"), 2500);
  }

  // ---------------------------------------------------------------- Python in a worker, one for the page

  const python = {
    worker: null,
    started: null,
    waiting: new Map(),
    count: 0,

    start() {
      this.started ??= new Promise((done, failed) => {
        if (location.protocol === "file:") {
          failed(new Error("a page opened from disk may not start Python; use `make book`"));
          return;
        }
        this.worker = new Worker(local("worker.mjs"), { type: "module" });
        this.worker.onerror = (event) => failed(new Error(event.message || "the worker did not start"));
        this.worker.onmessage = ({ data }) => {
          if (data.ready) done();
          else if (data.failed) failed(new Error(data.failed));
          else {
            this.waiting.get(data.answer)(data);
            this.waiting.delete(data.answer);
          }
        };
        const homes = settings.pyodide.map(local);
        this.worker.postMessage({ start: { pyodide: homes, kvlib: local("kv/kvlib.zip") } });
      });
      return this.started;
    },

    ask(key, message, transfer = []) {
      const number = ++this.count;
      return new Promise((done) => {
        this.waiting.set(number, done);
        this.worker.postMessage({ ...message, [key]: number }, transfer);
      });
    },

    async call(registry, id, request) {
      await this.start();
      const { json } = await this.ask("call", { registry, id, request: JSON.stringify(request) });
      return JSON.parse(json);
    },

    async keepFile(file) {
      await this.start();
      const bytes = new Uint8Array(await file.arrayBuffer());
      return (await this.ask("file", { name: file.name, bytes }, [bytes.buffer])).path;
    },
  };

  // ---------------------------------------------------------------- controls

  let counter = 0;
  // Each maker returns {element, read, write}; `moved` is called on every change by the reader.
  const makers = {
    slider(spec, moved) {
      const input = make("input", {
        type: "range", min: "0", max: String(spec.positions.length - 1), step: "1", id: `kv-${++counter}`,
      });
      const output = make("output", { for: input.id });
      const say = () => {
        output.textContent = spec.texts[input.value];
        input.setAttribute("aria-valuetext", spec.texts[input.value]);
      };
      const write = (value) => {
        input.value = spec.positions.indexOf(value);
        say();
      };
      input.addEventListener("input", () => { say(); moved(); });
      write(spec.default);
      const label = make("label", { for: input.id }, spec.label);
      return { element: make("div", { class: "kv-control" }, label, input, output), read: () => spec.positions[input.value], write };
    },

    list(spec, moved) {
      const options = spec.positions.map((value, i) => make("option", { value: String(i) }, spec.texts[i]));
      const input = make("select", { id: `kv-${++counter}` }, ...options);
      const write = (value) => { input.value = spec.positions.indexOf(value); };
      input.addEventListener("input", moved);
      write(spec.default);
      const label = make("label", { for: input.id }, spec.label);
      return { element: make("div", { class: "kv-control" }, label, input), read: () => spec.positions[input.value], write };
    },

    toggle(spec, moved) {
      const input = make("input", { type: "checkbox", id: `kv-${++counter}` });
      const write = (value) => { input.checked = value; };
      input.addEventListener("input", moved);
      write(spec.default);
      const label = make("label", { for: input.id }, spec.label);
      return { element: make("div", { class: "kv-control" }, label, input), read: () => input.checked, write };
    },

    text(spec, moved) {
      const input = make("input", { type: "text", id: `kv-${++counter}`, maxlength: String(spec.longest) });
      const write = (value) => { input.value = value; };
      input.addEventListener("input", moved);
      write(spec.default);
      const label = make("label", { for: input.id }, spec.label);
      return { element: make("div", { class: "kv-control" }, label, input), read: () => input.value, write };
    },

    stepper(spec, moved) {
      const { element, read, write } = makers.slider(spec, moved);
      const go = (index) => { write(Math.min(Math.max(index, 0), spec.positions.length - 1)); moved(); };
      const button = (text, name, act) => {
        const made = make("button", { type: "button", "aria-label": `${name}: ${spec.label}` }, text);
        made.addEventListener("click", act);
        return made;
      };
      let timer = null;
      const stop = () => { clearInterval(timer); timer = null; play.textContent = "▶"; };
      const play = button("▶", "Play or pause", () => {
        if (timer) return stop();
        if (read() === spec.positions.length - 1) go(0);
        play.textContent = "⏸";
        timer = setInterval(() => (read() === spec.positions.length - 1 ? stop() : go(read() + 1)), 900);
      });
      const back = button("◀", "Step back", () => { stop(); go(read() - 1); });
      const forward = button("▶|", "Step forward", () => { stop(); go(read() + 1); });
      element.append(make("span", { class: "kv-steps" }, back, play, forward));
      return { element, read, write };
    },

    file(spec, moved, say) {
      let path = spec.default;
      const input = make("input", { type: "file", id: `kv-${++counter}`, accept: spec.accept });
      const take = async (file) => {
        if (file.size > spec.max_bytes) {
          return say(`${file.name}: ${file.size.toLocaleString("en")} bytes, expected at most ${spec.max_bytes.toLocaleString("en")}`);
        }
        say("starting Python");
        try {
          path = await python.keepFile(file);
          moved();
        } catch (error) {
          say(`live mode unavailable (${error.message})`);
        }
      };
      input.addEventListener("change", () => input.files.length && take(input.files[0]));
      const write = (value) => { path = value; if (!value) input.value = ""; };
      const label = make("label", { for: input.id }, spec.label);
      const element = make("div", { class: "kv-control kv-file" }, label, input,
        make("small", {}, "Choose a file or drop it on this box. It is read here and never uploaded."));
      return { element, read: () => path, write, take };
    },
  };

  function restore(spec, control, text) {
    const value = spec.positions
      ? spec.positions.find((position) => String(position) === text)
      : spec.kind === "text" ? text : undefined;
    if (value !== undefined) control.write(value);
  }

  // ---------------------------------------------------------------- pictures

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function themed(layout) {
    const ink = colour("--pst-color-text-base") || "#222", grid = colour("--kv-grid");
    const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true };
    const dressed = { ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { ...layout.font, color: ink } };
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(name)) dressed[name] = { ...axis, ...layout[name] };
    }
    return dressed;
  }

  async function drawPlot(element, figure) {
    await loadScript(local(settings.plotly));
    await window.Plotly.react(element, figure.data, themed(figure.layout), { responsive: true, displayModeBar: false });
  }

  function tableOf([head, ...rows]) {
    const cells = (tag, row, more = {}) => make("tr", {}, ...row.map((text) => make(tag, more, text)));
    return make("table", {}, make("thead", {}, cells("th", head, { scope: "col" })),
      make("tbody", {}, ...rows.map((row) => cells("td", row))));
  }

  // ---------------------------------------------------------------- an explorer

  class Explorer {
    constructor(section) {
      this.section = section;
      const data = JSON.parse(section.querySelector("script").textContent);
      this.id = data.id;
      this.specs = data.controls;
      this.state = data.state;
      this.status = section.querySelector(".kv-status");
      this.picture = section.querySelector(".kv-picture");
      if (this.state.kind === "svg") this.state.picture = this.picture.innerHTML;
      this.first = this.state;
      this.shown = {};
      this.pending = null;
      this.busy = false;
      this.buildControls(section.querySelector(".kv-controls"));
      if (data.prediction) this.buildPrediction(data.prediction);
      this.say("precomputed");
      section.kv = this;
    }

    say(words) { this.status.textContent = words; }

    buildControls(form) {
      form.addEventListener("submit", (event) => event.preventDefault());
      this.controls = this.specs.map((spec) => makers[spec.kind](spec, () => this.movedBy(spec), (words) => this.say(words)));
      const [first, ...others] = this.controls.map((control) => control.element);
      form.append(first);
      if (others.length) form.append(make("details", { class: "kv-more" }, make("summary", {}, `More controls (${others.length})`), ...others));
      const reset = make("button", { type: "button" }, "Reset");
      reset.addEventListener("click", () => {
        this.specs.forEach((spec, i) => this.controls[i].write(spec.default));
        this.moved();
      });
      const link = make("button", { type: "button" }, "Link to this state");
      link.addEventListener("click", () => copyLink(link, this.id, this.linkable()));
      form.append(make("div", { class: "kv-buttons" }, reset, link));
      const [file] = this.files();
      if (file) {
        this.section.addEventListener("dragover", (event) => event.preventDefault());
        this.section.addEventListener("drop", (event) => {
          event.preventDefault();
          if (event.dataTransfer.files.length) file.take(event.dataTransfer.files[0]);
        });
      }
    }

    buildPrediction({ question, options, answer }) {
      const name = `kv-predict-${++counter}`;
      const reply = make("p", { class: "kv-reply", role: "status" });
      const rows = options.map(({ text, reply: words }, i) => {
        const input = make("input", { type: "radio", name, value: String(i) });
        input.addEventListener("change", () => { reply.textContent = `${i === answer ? "✓" : "✗"} ${words}`; });
        return make("label", {}, input, " " + text);
      });
      this.section.querySelector(".kv-prediction").append(
        make("fieldset", {}, make("legend", {}, make("strong", {}, "Predict first. "), question), ...rows, reply));
    }

    read() { return Object.fromEntries(this.specs.map((spec, i) => [spec.name, this.controls[i].read()])); }

    changed() {
      const values = this.read();
      return Object.fromEntries(this.specs.filter((spec) => values[spec.name] !== spec.default).map((spec) => [spec.name, values[spec.name]]));
    }

    // A file stays with the reader, so a link cannot carry it.
    linkable() {
      const files = this.specs.filter((spec) => spec.kind === "file").map((spec) => spec.name);
      return Object.fromEntries(Object.entries(this.changed()).filter(([name]) => !files.includes(name)));
    }

    // The default, or one discrete control away from it.
    stored(changed) {
      const names = Object.keys(changed);
      if (!names.length) return this.first;
      const spec = this.specs.find((s) => s.name === names[0]);
      if (names.length > 1 || !spec.positions) return undefined;
      return states.get(this.id)?.[spec.name][spec.positions.indexOf(changed[spec.name])];
    }

    // Choosing a preset gives up the file that stood in for it.
    movedBy(moved) {
      this.specs.forEach((spec, i) => { if (spec.replaces === moved.name) this.controls[i].write(""); });
      this.moved();
    }

    // The files that go with the picture in sight; a refused one is given up for the one before.
    files() { return this.controls.filter((control) => control.take); }

    moved() {
      loadStates(this.id).then(() => {
        const changed = this.changed();
        const state = this.stored(changed);
        if (state) {
          this.pending = null;
          this.take(state, "precomputed");
        } else {
          this.pending = changed;
          this.work();
        }
        python.start().catch(() => {});
      });
    }

    // Keeps only the latest request while Python is busy.
    async work() {
      if (this.busy) return;
      this.busy = true;
      while (this.pending) {
        const changed = this.pending;
        this.pending = null;
        try {
          if (!this.live) this.say("starting Python in your browser (some seconds, once a page)");
          const state = await python.call("explorer", this.id, changed);
          this.live = true;
          // A reader who has gone back to a stored state meanwhile must not see this older answer.
          if (this.pending || JSON.stringify(this.changed()) !== JSON.stringify(changed)) continue;
          this.take(state, "live");
        } catch (error) {
          this.say(`live mode unavailable (${error.message}); single sliders still work`);
        }
      }
      this.busy = false;
    }

    // A refused setting leaves the previous picture standing.
    take(state, words) {
      if (state.error) {
        this.files().forEach((control, i) => control.write(this.kept?.[i] ?? ""));
        return this.say(`not possible: ${state.error.replaceAll("/files/", "")}`);
      }
      this.kept = this.files().map((control) => control.read());
      this.say(words);
      this.draw(state);
    }

    draw(state = this.state) {
      this.state = state;
      const put = (name, words) => { this.section.querySelector(name).textContent = words; };
      put(".kv-title", state.title);
      put(".kv-note", state.note);
      put(".kv-source", `${state.source[0].toUpperCase()}${state.source.slice(1)}.`);
      this.section.querySelector(".kv-numbers table").replaceWith(tableOf(state.table));
      if (state.kind === "svg") this.picture.innerHTML = state.picture;
      else return drawPlot(this.picture, state.picture);
    }

    restoreFrom(parts) {
      this.specs.forEach((spec, i) => parts.has(spec.name) && restore(spec, this.controls[i], parts.get(spec.name)));
      this.moved();
      const folded = this.section.querySelector(".kv-more");
      if (folded && this.specs.slice(1).some((spec) => parts.has(spec.name))) folded.open = true;
    }
  }

  // ---------------------------------------------------------------- an exercise

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
      this.input = make("input", { type: "text", inputmode: "decimal", id: `kv-${++counter}`, autocomplete: "off" });
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
      other.addEventListener("click", () => this.load(this.seed + 1));
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
    }
  }

  // ---------------------------------------------------------------- the page

  function follow(items) {
    const { id, parts } = fragment();
    const item = items.find((candidate) => candidate.id === id);
    if (!item) return;
    item.restoreFrom(parts);
    item.section.scrollIntoView();
  }

  function awaken() {
    const explorers = [...document.querySelectorAll(".kv-explorer")].map((section) => new Explorer(section));
    const exercises = [...document.querySelectorAll(".kv-exercise")].map((section) => new Exercise(section));
    const items = [...explorers, ...exercises];
    if (!items.length) return;

    const plots = explorers.filter((explorer) => explorer.state.kind === "plotly");
    const near = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        near.unobserve(target);
        loadStates(target.kv.id);
      }
    }, { rootMargin: "600px" });
    items.forEach((item) => near.observe(item.section));
    plots.reduce((before, explorer) => before.then(() => explorer.draw()), Promise.resolve());

    // A figure first laid out inside something folded has the wrong width until it is seen.
    const sizes = new ResizeObserver((entries) => entries.forEach(({ target, contentRect }) => {
      if (target._fullLayout && contentRect.width > 0) window.Plotly.Plots.resize(target);
    }));
    plots.forEach((explorer) => sizes.observe(explorer.picture));
    new MutationObserver(() => plots.forEach((explorer) => explorer.draw()))
      .observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });

    follow(items);
    window.addEventListener("hashchange", () => follow(items));
  }

  // What axe-core counts as serious in the theme: buttons named differently from the words on them (the
  // theme names them again whenever the mode changes), and a list role on what docutils does not make a list.
  function mendTheme() {
    for (const button of document.querySelectorAll(".search-button-field, .theme-switch-button, details.hide summary")) {
      const mend = () => button.textContent.trim() && button.hasAttribute("aria-label") && button.removeAttribute("aria-label");
      mend();
      new MutationObserver(mend).observe(button, { attributes: true, attributeFilter: ["aria-label"] });
    }
    document.querySelectorAll(".citation-list").forEach((list) => list.removeAttribute("role"));
    // A long formula scrolls in its own box on a phone, and a keyboard must reach what scrolls.
    window.MathJax?.startup?.promise?.then(() => document.querySelectorAll('mjx-container[display="true"]')
      .forEach((formula) => { formula.tabIndex = 0; }));
  }
  window.addEventListener("load", mendTheme);

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", awaken);
  else awaken();
})();
