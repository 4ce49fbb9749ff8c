// The controls of explorers and exercises, made from what kvlib.explore.controls declares.
(() => {
  "use strict";
  const { make, freshId, python } = window.kv;

  // Every control says autocomplete="off": a browser that goes back would put its old value under a new picture.

  // Files dropped on `place` go to `take`, and to nobody around it.
  function catchDrops(place, take) {
    place.addEventListener("dragover", (event) => event.preventDefault());
    place.addEventListener("drop", (event) => {
      event.preventDefault();
      event.stopPropagation();
      if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
    });
  }

  // Each maker returns {element, read, write}; `moved` is called on every change by the reader.
  const makers = {
    slider(spec, moved) {
      const input = make("input", {
        type: "range", min: "0", max: String(spec.positions.length - 1), step: "1", id: freshId(), autocomplete: "off",
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
      const input = make("select", { id: freshId(), autocomplete: "off" }, ...options);
      const write = (value) => { input.value = spec.positions.indexOf(value); };
      input.addEventListener("input", moved);
      write(spec.default);
      const label = make("label", { for: input.id }, spec.label);
      return { element: make("div", { class: "kv-control" }, label, input), read: () => spec.positions[input.value], write };
    },

    toggle(spec, moved) {
      const input = make("input", { type: "checkbox", id: freshId(), autocomplete: "off" });
      const write = (value) => { input.checked = value; };
      input.addEventListener("input", moved);
      write(spec.default);
      const label = make("label", { for: input.id }, spec.label);
      return { element: make("div", { class: "kv-control" }, label, input), read: () => input.checked, write };
    },

    text(spec, moved) {
      const input = make("input", { type: "text", id: freshId(), autocomplete: "off", maxlength: String(spec.longest) });
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
      const input = make("input", { type: "file", id: freshId(), accept: spec.accept });
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
        make("small", {}, "Or drop it here. Never uploaded."));
      catchDrops(element, take);
      return { element, read: () => path, write, take };
    },
  };

  // Puts a control where a link wants it, or says why not.
  function restore(spec, control, text) {
    if (spec.kind === "file") return `${spec.label} is a file, which a link cannot carry`;
    const value = spec.positions ? spec.positions.find((position) => String(position) === text) : text.slice(0, spec.longest);
    if (value === undefined) return `${spec.label} has no position “${text}”`;
    control.write(value);
    return "";
  }

  Object.assign(window.kv, { makers, restore, catchDrops });
})();
