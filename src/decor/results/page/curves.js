// The chosen metric over the steps, for every method at the chosen epsilon (and without privacy), with a band over seeds.

function drawCurves() {
  const host = byId('curves');
  const metric = state.metric();
  const all = page.outcomes.filter((o) => o.epsilon === state.epsilon || o.epsilon === null);
  const rows = all.filter((o) => state.shown(o.method) && o.curve && o.curve[metric.name]);
  const at = state.epsilon === null ? 'without privacy' : `at ε = ${state.epsilonText()}`;
  byId('curves-note').textContent = `${metric.label[0].toUpperCase()}${metric.label.slice(1)} ${at}: ${spreadNote(rows.map((o) => (o.seeds > 1 ? 0 : null)))}.`;
  if (!rows.length) {
    host.replaceChildren(el('p', { class: 'empty' }, all.some((o) => o.curve && o.curve[metric.name]) ? 'Every method is switched off.' : `No curve of ${metric.label} was kept here.`));
    return;
  }
  const values = rows.flatMap((o) => pieces(o, o.curve[metric.name]).flat());
  const steps = [...new Set(rows.flatMap((o) => o.curve.step))].sort((a, b) => a - b);
  const plot = frame(host, {
    x: linearScale(steps[0], steps[steps.length - 1], Math.max(3, Math.floor(host.clientWidth / 110))), y: valueScale(values, metric, 5),
    xTitle: 'steps', yTitle: valueTitle(metric), label: `${metric.label} over the steps ${at}; arrow keys read the values`,
  });
  const clip = svg('clipPath', { id: 'curves-clip' }, svg('rect', { x: plot.box.left, y: plot.box.top - 4, width: plot.box.right - plot.box.left, height: plot.box.bottom - plot.box.top + 8 }));
  plot.root.append(clip);
  rows.forEach((o) => {
    const group = svg('g', { 'data-method': o.method, 'data-series': page.methods[o.method].name, 'clip-path': 'url(#curves-clip)' });
    group.append(...drawRun(plot, o, o.curve[metric.name]));
    plot.inner.append(group);
  });
  cursor(plot, steps.map((step) => plot.x(step)), (k, x, y) => curvesTip(steps[k], x, y, metric, rows));
}

// pieces between gaps, so that a curve with missing values is never joined across them
function pieces(o, series) {
  const found = [];
  let piece = [];
  series.mean.forEach((mean, k) => {
    if (mean !== null) piece.push({ step: o.curve.step[k], mean, error: series.error[k] || 0 });
    if ((mean === null || k === series.mean.length - 1) && piece.length) { found.push(piece); piece = []; }
  });
  return found;
}

function drawRun(plot, o, series) {
  const made = [];
  const paint = { stroke: colour(o.method) };
  for (const piece of pieces(o, series)) {
    const upper = piece.map((p) => `${plot.x(p.step)},${plot.y(p.mean + p.error)}`);
    const lower = piece.map((p) => `${plot.x(p.step)},${plot.y(p.mean - p.error)}`).reverse();
    if (piece.some((p) => p.error)) made.push(svg('path', { class: 'band', d: `M${upper.join('L')}L${lower.join('L')}z`, paint: { fill: colour(o.method) } }));
    const line = piece.map((p) => `${plot.x(p.step)},${plot.y(p.mean)}`).join('L');
    made.push(piece.length > 1
      ? svg('path', { class: 'line', d: `M${line}`, 'stroke-dasharray': page.methods[o.method].dashed ? '6 5' : null, paint })
      : svg('path', { class: 'dot', d: markPath('circle', plot.x(piece[0].step), plot.y(piece[0].mean), 4), paint: { fill: colour(o.method) } }));
  }
  if (o.stopped) {
    const last = pieces(o, series).pop()?.pop();
    if (last) {
      const [x, y] = [plot.x(last.step), plot.y(last.mean)];
      made.push(svg('path', { class: 'failed', d: `M${x - 4.5},${y - 4.5}l9,9m0,-9l-9,9`, paint }));
    }
  }
  return made;
}

function curvesTip(step, x, y, metric, rows) {
  const lines = [];
  const stopped = [];
  for (const o of rows) {
    const k = o.curve.step.indexOf(step);
    const series = o.curve[metric.name];
    const method = page.methods[o.method];
    if (k >= 0 && series.mean[k] !== null) {
      const unit = metric.unit ? ` ${metric.unit}` : '';
      lines.push({ mean: series.mean[k], colour: colour(o.method), name: method.name, text: withSpread(metric, series.mean[k], series.error[k]) + unit });
    } else if (o.stopped) stopped.push(`${method.name}: ${o.stopped}`);
  }
  lines.sort((a, b) => betterFirst(metric, a.mean, b.mean));
  showTip(x, y, `step ${counted(step)}`, lines, stopped);
}
