// Brings the explorers and exercises of a page to life, and mends what the theme leaves undone.
(() => {
  "use strict";
  const { local, make, loadStates, fragment, Explorer, Exercise } = window.kv;

  // A link whose explorer stands elsewhere must not look as if it had been followed.
  function sayUnknown(id) {
    document.querySelector(".kv-notice")?.remove();
    if (!id) return;
    const index = make("a", { href: local("../book/reference/explorers.html") }, "index of explorers");
    document.querySelector(".bd-article h1")?.after(make("p", { class: "kv-notice", role: "status" },
      `This link asks for “${id}”, and nothing on this page is called that, so everything stands at its default. See the `, index, "."));
  }

  function follow(items) {
    const { id, parts } = fragment();
    const item = items.find((candidate) => candidate.id === id);
    sayUnknown(item ? null : id);
    if (!item) return;
    item.restoreFrom(parts);
    item.form.scrollIntoView();
  }

  function awaken() {
    const explorers = [...document.querySelectorAll(".kv-explorer")].map((section) => new Explorer(section));
    const exercises = [...document.querySelectorAll(".kv-exercise")].map((section) => new Exercise(section));
    const items = [...explorers, ...exercises];

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
  awaken();
})();
