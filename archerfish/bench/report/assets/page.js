// Draws the page's figures, in the colors that the reader prefers. Knows nothing of what they show.
(() => {
  const text = document.getElementById("data").textContent;
  const { dark } = JSON.parse(text);
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

  // Figures come in light colors; each has a dark counterpart.
  const colored = (isDark) =>
    isDark ? text.replace(/#[0-9a-f]{6}/gi, (color) => dark[color.toLowerCase()] ?? color) : text;

  const draw = () => {
    const { figures } = JSON.parse(colored(prefersDark.matches));
    const style = getComputedStyle(document.documentElement);
    const hoverlabel = {
      bgcolor: style.getPropertyValue("--card").trim(),
      bordercolor: style.getPropertyValue("--line-strong").trim(),
      font: { color: style.getPropertyValue("--ink").trim() },
    };
    for (const [name, { data, layout }] of Object.entries(figures)) {
      Plotly.react(name, data, { ...layout, hoverlabel }, { responsive: true, displayModeBar: false });
    }
  };
  prefersDark.addEventListener("change", draw);
  draw();
})();
