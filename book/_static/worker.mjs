// Runs kvlib in the reader's browser. Booted on first touch; one question at a time.
// Messages in:  {start: {pyodide: [urls], kvlib: url}}, {call: n, registry, id, request}, {file: n, name, bytes}
// Messages out: {ready: true} | {failed: why}, {answer: n, json}, {answer: n, path}

let python;

async function boot({ pyodide: homes, kvlib }) {
  let why;
  for (const home of homes) {
    try {
      const { loadPyodide } = await import(home + "pyodide.mjs");
      python = await loadPyodide({ indexURL: home });
      break;
    } catch (error) {
      why = error;
    }
  }
  if (!python) throw why;
  const response = await fetch(kvlib);
  if (!response.ok) throw new Error(`${kvlib}: ${response.status}`);
  python.unpackArchive(await response.arrayBuffer(), "zip");
  python.runPython(`
import os
from kvlib.explore import EXERCISES, REGISTRY
os.makedirs("/files", exist_ok=True)
def answer(registry, item_id, request):
    return {"explorer": REGISTRY, "exercise": EXERCISES}[registry][item_id].json(request)
`);
}

// A name may hold anything; only its last part is used, so that it stays inside the folder.
function keep(name, bytes) {
  const path = "/files/" + name.replace(/[/\\]/g, "_");
  python.FS.writeFile(path, bytes);
  return path;
}

self.onmessage = async ({ data }) => {
  try {
    if (data.start) {
      await boot(data.start);
      self.postMessage({ ready: true });
    } else if (data.file !== undefined) {
      self.postMessage({ answer: data.file, path: keep(data.name, data.bytes) });
    } else {
      const json = python.globals.get("answer")(data.registry, data.id, data.request);
      self.postMessage({ answer: data.call, json });
    }
  } catch (error) {
    // The last line of a Python traceback is the message; the rest would not help a reader.
    const why = String(error.message || error).trim().split("\n").pop();
    if (data.start) self.postMessage({ failed: why });
    else self.postMessage({ answer: data.call ?? data.file, json: JSON.stringify({ error: why }) });
  }
};
