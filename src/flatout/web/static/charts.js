// Charts that zoom, in place of the pictures: drag, or the keys + - arrows and 0.

const DASHES = [undefined, [6, 3], [2, 3], [8, 3, 2, 3]];
const SHARES = ["utilization", "accuracy", "top1", "top5", "precision", "recall", "f1"];
const POWERS_OF_TWO = Array.from({ length: 50 }, (_, power) => 2 ** power);
const HEIGHT = 260;
const charts = new Map();

const cssValue = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function valueText(panel, value) {
  if (value === null || value === undefined) return "";
  if (panel.endsWith("_bytes")) {
    const power = Math.min(4, Math.floor(Math.log2(Math.max(1, Math.abs(value))) / 10));
    return `${(value / 1024 ** power).toFixed(power ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
  }
  if (panel.endsWith("_bytes_per_s")) return `${valueText("_bytes", value)}/s`;
  if (SHARES.includes(panel.split("_").pop()) && value >= 0 && value <= 1) return `${(100 * value).toFixed(1)} %`;
  return Math.abs(value) >= 1e4 && Number.isInteger(value) ? value.toLocaleString("en") : `${Number(value.toPrecision(4))}`;
}

// Local times, as on the pictures.
function timeTexts(ticks) {
  const isDays = ticks.at(-1) - ticks[0] > 3 * 86400;
  return ticks.map((tick) => {
    const at = new Date(1000 * tick);
    const [first, second] = isDays ? [at.getMonth() + 1, at.getDate()] : [at.getHours(), at.getMinutes()];
    return [first, second].map((part) => String(part).padStart(2, "0")).join(isDays ? "-" : ":");
  });
}

// As on the pictures.
function withMargin(_, low, high) {
  if (low === null) return [null, null];
  const margin = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  return [low - margin, high + margin];
}

async function fetched(chart) {
  const { from, to } = chart.range ?? {};
  const columns = Math.max(50, Math.min(1000, Math.round(chart.figure.clientWidth)));
  let address = `${chart.figure.dataset.chart}&columns=${columns}`;
  if (from !== undefined) address += `&from=${from}&to=${to}`;
  const answer = await fetch(address);
  if (!answer.ok) return undefined;
  return (await answer.json()).charts[0];
}

function optionsFor(chart, data) {
  const { panel, step } = chart.figure.dataset;
  const axis = { stroke: cssValue("--quiet"), grid: { stroke: cssValue("--rule"), width: 1 }, ticks: { stroke: cssValue("--rule") } };
  const times = data.is_time ? { values: (_, ticks) => timeTexts(ticks) } : {};
  const increments = panel.includes("_bytes") ? { incrs: POWERS_OF_TWO } : {};
  const series = data.lines.map((line) => ({
    label: line.line,
    stroke: cssValue(`--color-${line.color}`),
    dash: DASHES[line.dash],
    width: 1.6,
    spanGaps: !data.is_time,
    points: { show: line.steps.length <= 40 },
  }));
  return {
    width: chart.figure.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    scales: { x: { time: data.is_time }, y: data.is_log ? { distr: 3 } : { range: withMargin } },
    axes: [{ ...axis, ...times, label: step, labelSize: 20 }, { ...axis, ...increments, size: 76, values: (_, ticks) => ticks.map((tick) => valueText(panel, tick)) }],
    series: [{ label: step }, ...series],
    cursor: { drag: { setScale: false }, bind: { dblclick: () => () => zoom(chart, undefined) } },
    hooks: { setSelect: [(plot) => selected(chart, plot)], setCursor: [(plot) => showValues(chart, plot)] },
  };
}

function selected(chart, plot) {
  const { left, width } = plot.select;
  if (width < 5) return;
  const from = Math.floor(plot.posToVal(left, "x"));
  plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  zoom(chart, { from: Math.max(0, from), to: Math.max(from + 1, Math.ceil(plot.posToVal(left + width, "x"))) });
}

function showValues(chart, plot) {
  const at = plot.cursor.idx;
  chart.figure.querySelectorAll(".legend li").forEach((entry, number) => {
    const values = plot.data[number + 1];
    const place = entry.querySelector(".last");
    if (!values || !place) return;
    const value = at === null || at === undefined ? values.findLast((one) => one !== null && one !== undefined) : values[at];
    place.textContent = valueText(chart.figure.dataset.panel, value);
  });
}

async function draw(chart) {
  const data = await fetched(chart);
  if (!data || !data.lines.some((line) => line.steps.length)) return;
  const shown = uPlot.join(data.lines.map((line) => [line.steps, line.values]));
  if (chart.plot && chart.isLog === data.is_log && chart.plot.series.length === data.lines.length + 1) {
    chart.plot.setData(shown);
  } else {
    chart.plot?.destroy();
    chart.figure.querySelector(":scope > svg")?.remove();
    chart.plot = new uPlot(optionsFor(chart, data), shown, chart.place);
    chart.isLog = data.is_log;
  }
  chart.button.hidden = !chart.range;
  if (data.share_read < 1) {
    setTimeout(() => draw(chart), 100);
  } else if (chart.wasPartial) {
    document.dispatchEvent(new Event("flatout:read"));
  }
  chart.wasPartial = data.share_read < 1;
}

function zoom(chart, range) {
  chart.range = range;
  draw(chart);
}

function pressed(chart, event) {
  if (!chart.plot || event.ctrlKey || event.metaKey || event.altKey) return;
  const { min, max } = chart.plot.scales.x;
  const width = max - min;
  const moves = {
    "+": [min + width / 4, max - width / 4], "-": [min - width / 2, max + width / 2],
    ArrowLeft: [min - width / 4, max - width / 4], ArrowRight: [min + width / 4, max + width / 4],
  };
  if (event.key === "0") {
    zoom(chart, undefined);
  } else if (moves[event.key]) {
    const [from, to] = moves[event.key].map((step) => Math.max(0, Math.round(step)));
    if (to > from) zoom(chart, { from, to });
  } else {
    return;
  }
  event.preventDefault();
}

function enhance(figure) {
  const place = document.createElement("div");
  place.className = "plot";
  place.tabIndex = 0;
  place.setAttribute("role", "group");
  place.setAttribute("aria-label", figure.querySelector("figcaption").textContent);
  figure.querySelector("figcaption").after(place);
  const button = document.createElement("button");
  button.type = "button";
  button.hidden = true;
  button.textContent = figure.dataset.reset;
  figure.append(button);
  const chart = { figure, place, button };
  button.addEventListener("click", () => zoom(chart, undefined));
  place.addEventListener("keydown", (event) => pressed(chart, event));
  new ResizeObserver(() => {
    const width = figure.clientWidth;
    if (chart.plot && chart.plot.width !== width) chart.plot.setSize({ width, height: HEIGHT });
  }).observe(figure);
  charts.set(figure, chart);
  draw(chart);
}

export function refreshCharts() {
  for (const [figure, chart] of charts) {
    if (figure.isConnected) draw(chart);
    else charts.delete(figure);
  }
  document.querySelectorAll("figure[data-chart]").forEach((figure) => charts.has(figure) || enhance(figure));
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts.values()) {
    chart.plot?.destroy();
    chart.plot = undefined;
  }
  refreshCharts();
});
refreshCharts();
