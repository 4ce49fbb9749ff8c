// An explorer. Its pictures and numbers all come from kvlib: precomputed in explorers/<id>.js, or computed by the worker.
(() => {
  "use strict";
  const { settings, local, make, freshId, loadScript, states, loadStates, copyLink, python, makers, restore, catchDrops } = window.kv;

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function themed(layout) {
    const ink = color("--pst-color-text-base") || "#222", grid = color("--kv-grid");
    const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true };
    const dressed = { ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { ...layout.font, color: ink } };
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(name)) dressed[name] = { ...axis, ...layout[name] };
    }
    return dressed;
  }

  // A sheet of paper is narrower than the window the picture was drawn for.
  function letPaperScale(element) {
    for (const svg of element.querySelectorAll(".main-svg")) {
      const box = `0 0 ${svg.getAttribute("width")} ${svg.getAttribute("height")}`;
      if (svg.getAttribute("viewBox") !== box) svg.setAttribute("viewBox", box);  // setting it lays the page out anew
    }
  }

  async function drawPlot(element, figure) {
    await loadScript(local(settings.plotly));
    const isFirst = !element._fullLayout;
    await window.Plotly.react(element, figure.data, themed(figure.layout), { responsive: true, displayModeBar: false });
    if (!isFirst) return;
    letPaperScale(element);
    element.on("plotly_afterplot", () => letPaperScale(element));
  }

  function tableOf([head, ...rows]) {
    const cells = (tag, row, more = {}) => make("tr", {}, ...row.map((text) => make(tag, more, text)));
    return make("table", {}, make("thead", {}, cells("th", head, { scope: "col" })),
      make("tbody", {}, ...rows.map((row) => cells("td", row))));
  }

  const STATUS_HELP =
    "Precomputed: this state is stored with the page. Starting Python: your browser is loading the library under this book, once a page. " +
    "Live: that library has just computed this state here, on your machine. Not possible: it refused the setting, so the picture " +
    "before it stands. Live mode unavailable: Python did not start; single controls still answer from stored states.";

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
      this.pending = null;
      this.busy = false;
      this.form = section.querySelector(".kv-controls");
      this.buildControls();
      if (data.prediction) this.buildPrediction(data.prediction);
      this.say("precomputed");
      section.kv = this;
    }

    // What a link asked for in vain is said until the reader moves something.
    say(words) { this.status.textContent = [words, this.unfollowed].filter(Boolean).join(". "); }

    buildControls() {
      const form = this.form;
      form.addEventListener("submit", (event) => event.preventDefault());
      this.controls = this.specs.map((spec) => makers[spec.kind](spec, () => this.movedBy(spec), (words) => this.say(words)));
      const [first, ...others] = this.controls.map((control) => control.element);
      form.append(first);
      if (others.length) {
        const summary = make("summary", {}, `More controls (${others.length})`);
        form.append(make("details", { class: "kv-more" }, summary, make("div", { class: "kv-fields" }, ...others)));
      }
      const reset = make("button", { type: "button" }, "Reset");
      reset.addEventListener("click", () => {
        this.unfollowed = "";
        this.putDefaults();
        this.moved();
      });
      const link = make("button", { type: "button" }, "Link to this state");
      link.addEventListener("click", () => copyLink(link, this.id, this.linkable()));
      const help = make("details", { class: "kv-what" }, make("summary", {}, "what is this?"), make("p", {}, STATUS_HELP));
      form.append(make("div", { class: "kv-buttons" }, reset, link, this.status, help));
      if (this.files().length) catchDrops(this.section, (file) => this.fileControlFor(file).take(file));
    }

    // A file dropped beside the controls goes to the one that takes files of that name, the choosiest if several do.
    fileControlFor(file) {
      const endings = (i) => this.specs[i].accept.split(",");
      const fitting = [...this.specs.keys()]
        .filter((i) => this.specs[i].kind === "file" && endings(i).some((ending) => file.name.toLowerCase().endsWith(ending)))
        .sort((i, j) => endings(i).length - endings(j).length);
      return fitting.length ? this.controls[fitting[0]] : this.files()[0];
    }

    buildPrediction({ question, options, answer }) {
      const name = freshId();
      const reply = make("p", { class: "kv-reply", role: "status" });
      const rows = options.map(({ text, reply: words }, i) => {
        const input = make("input", { type: "radio", name, value: String(i), autocomplete: "off" });
        input.addEventListener("change", () => { reply.textContent = `${i === answer ? "✓" : "✗"} ${words}`; });
        return make("label", {}, input, " " + text);
      });
      this.section.querySelector(".kv-prediction").append(
        make("fieldset", {}, make("legend", {}, make("strong", {}, "Predict first. "), question), ...rows, reply));
    }

    putDefaults() { this.specs.forEach((spec, i) => this.controls[i].write(spec.default)); }

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
      this.unfollowed = "";
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
      this.markStale(true);
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
      this.markStale(false);
    }

    // While Python computes, the picture does not belong to the controls yet.
    markStale(isStale) {
      const figure = this.section.querySelector(".kv-figure");
      figure.classList.toggle("kv-stale", isStale);
      figure.setAttribute("aria-busy", String(isStale));
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
      this.putDefaults();
      const refusals = [...parts].map(([name, text]) => {
        const i = this.specs.findIndex((spec) => spec.name === name);
        return i < 0 ? `this explorer has no control “${name}”` : restore(this.specs[i], this.controls[i], text);
      }).filter(Boolean);
      this.unfollowed = refusals.length
        ? `The link was not followed in full: ${refusals.join("; ")}. What it could not set stands at its default.` : "";
      this.moved();
      const folded = this.section.querySelector(".kv-more");
      if (folded && this.specs.slice(1).some((spec) => parts.has(spec.name))) folded.open = true;
    }
  }

  window.kv.Explorer = Explorer;
})();
