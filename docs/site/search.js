// A browser reads no file from disk for a page that asks. The search page asks for every page that it has found, to show an excerpt:
// the build has put their texts into texts.js.
(() => {
  const asked = window.fetch;
  window.fetch = (what, how) => {
    const page = new URL(what, location.href).pathname.split("/").pop();
    const text = location.protocol === "file:" && window.DECOR_TEXTS ? window.DECOR_TEXTS[page] : undefined;
    return text === undefined ? asked(what, how) : Promise.resolve(new Response(text));
  };
})();
