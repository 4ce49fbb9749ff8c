// What the other scripts of a page share: making elements, loading stored states, links to a state, and Python in a worker.
// The scripts load in order (common, controls, explorer, exercise, page) and meet in the one object window.kv. They are
// plain scripts, since a page opened from disk may not load modules.
window.kv = (() => {
  "use strict";
  const here = new URL(".", document.currentScript.src);
  const settings = { plotly: "kv/plotly.min.js", pyodide: ["kv/pyodide/"], ...window.KV_SETTINGS };
  const local = (path) => new URL(path, here).href;

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name in element && typeof value !== "string") element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  let made = 0;
  const freshId = () => `kv-${++made}`;

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

  return { settings, local, make, freshId, loadScript, states, loadStates, fragment, copyLink, python };
})();
