// A JupyterLab plugin, small enough to need no build step: a link in the top bar back to the course's page.
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

  const plugin = {
    id: "accelerando-room:course-link",
    autoStart: true,
    activate: async app => {
      const { Widget } = await load("@lumino/widgets");
      const { PageConfig } = await load("@jupyterlab/coreutils");
      app.shell.add(courseLink(Widget, PageConfig.getBaseUrl() + "accelerando"), "top", { rank: 1000 });
    }
  };

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB["accelerando-room"] = {
    init: scope => { shared = scope; },
    get: async () => () => ({ __esModule: true, default: plugin })
  };
})();
