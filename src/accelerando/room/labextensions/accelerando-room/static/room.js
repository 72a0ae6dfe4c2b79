// A JupyterLab plugin, small enough to need no build step: a link in the top bar back to the course's page, and the
// word "Lesson" or "Lab" on the tab of each notebook. A lesson and its lab are files of one name (nbgrader wants the
// lab's folder and file to be called alike), and a tab shows the file's name only.
// JupyterLab loads this file and asks the container below for "./extension".
(() => {
  let shared = null; // JupyterLab's own modules, by name and version

  async function load(name) {
    const versions = Object.values(shared[name]);
    return (await versions[0].get())();
  }

  function courseLink(Widget, address) {
    const link = document.createElement("a");
    link.href = address;
    link.target = "accelerando-course";
    link.textContent = "♩ Course";
    link.title = "The ten lessons, and what you have passed so far";
    link.style.cssText =
      "padding: 0 12px; line-height: 28px; font-weight: 600; text-decoration: none; color: var(--jp-ui-font-color1)";
    const widget = new Widget({ node: document.createElement("div") });
    widget.id = "accelerando-course-link";
    widget.node.append(link);
    return widget;
  }

  // Marks the tab by an attribute and a style. The tab's label itself must stay as it is: who changes it renames the file.
  function markTabs(shell) {
    const words = { notebooks: "lesson", labs: "lab" };
    for (const widget of shell.widgets("main")) {
      const path = widget.context?.localPath ?? widget.context?.path ?? "";
      const part = path.endsWith(".ipynb") ? words[path.split("/")[0]] : undefined;
      if (part && widget.title.dataset["course-part"] !== part) {
        widget.title.dataset = { ...widget.title.dataset, "course-part": part };
      }
    }
  }

  function tabStyle() {
    const style = document.createElement("style");
    const label = part => `.lm-TabBar-tab[data-course-part=${part}] .lm-TabBar-tabLabel::before`;
    style.textContent = ["Lesson", "Lab"]
      .map(word => `${label(word.toLowerCase())} { content: "${word} · "; font-weight: 600; }`)
      .join("\n");
    return style;
  }

  const plugin = {
    id: "accelerando-room:course-link",
    autoStart: true,
    activate: async app => {
      const { Widget } = await load("@lumino/widgets");
      const { PageConfig } = await load("@jupyterlab/coreutils");
      document.head.append(tabStyle());
      app.shell.layoutModified.connect(() => markTabs(app.shell));
      app.shell.add(courseLink(Widget, PageConfig.getBaseUrl() + "accelerando"), "top", { rank: 1000 });
    }
  };

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB["accelerando-room"] = {
    init: scope => { shared = scope; },
    get: async () => () => ({ __esModule: true, default: plugin })
  };
})();
