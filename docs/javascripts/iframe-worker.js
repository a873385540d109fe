// Search in pages that were opened as files: browsers start no worker from a file, so a hidden frame runs its script.
"use strict";
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = this.inside = frame.contentWindow;
      const load = source => new Promise((done, failed) => {
        const script = inside.document.createElement("script");
        script.src = new URL(source, document.baseURI).href;
        script.onload = done;
        script.onerror = failed;
        inside.document.head.append(script);
      });
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...sources) => sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      this.ready = load(url);
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
