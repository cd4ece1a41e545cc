// The state of the page, its controls, and what is drawn again when it changes.

const page = JSON.parse(byId('data').textContent);

const state = {
  metricName: page.metrics[0].name, method: 0, epsilon: null, graph: null, off: new Set(),
  shown(method) { return !this.off.has(method); },
  metric() { return page.metrics.find((metric) => metric.name === this.metricName); },
  epsilonText() { const found = page.epsilons.find((e) => e.value === this.epsilon); return found ? found.text : 'none'; },
  find(method, epsilon) { return page.outcomes.find((o) => o.method === method && o.epsilon === epsilon) || page.outcomes.find((o) => o.method === method && o.epsilon === null); },
  outcome() { return this.find(this.method, this.epsilon); },
  graphOutcome() { return page.methods[this.method].graph === this.graph ? this.outcome() : this.find(methodOn(this.graph), this.epsilon); },
};

// the method that shows a graph's users: a DECOR one if there is one
function methodOn(graph) {
  const on = page.methods.map((method, k) => ({ ...method, k })).filter((method) => method.graph === graph);
  const best = on.find((method) => method.kind === 'decor') || on[0];
  return best ? best.k : -1;
}

function change(what) {
  Object.assign(state, what);
  if (what.method !== undefined && page.graphs.some((g) => g.name === page.methods[state.method].graph)) state.graph = page.methods[state.method].graph;
  if (what.graph !== undefined && page.methods[state.method].graph !== what.graph && methodOn(what.graph) >= 0) state.method = methodOn(what.graph);
  draw();
}

function draw() {
  hideTip();
  byId('method').value = String(state.method);
  byId('metric').value = state.metricName;
  byId('graph-choice').value = state.graph || '';
  for (const input of byId('epsilons').querySelectorAll('input')) input.checked = page.epsilons[input.value].value === state.epsilon;
  for (const button of document.querySelectorAll('[data-legend] button')) button.setAttribute('aria-pressed', String(state.shown(Number(button.dataset.method))));
  drawPromise();
  drawFigures();
  drawPrivacy();
  drawCurves();
  drawGraph();
  drawAdversaries();
  markRow();
}

function toggle(method) {
  if (state.off.has(method)) state.off.delete(method); else state.off.add(method);
  draw();
}

function makeControls() {
  byId('epsilons').append(...page.epsilons.map((e, k) => el('label', null, el('input', { type: 'radio', name: 'epsilon', value: k, 'aria-label': `epsilon ${e.text}` }), el('span', null, e.text))));
  byId('epsilons').addEventListener('change', (event) => change({ epsilon: page.epsilons[event.target.value].value }));
  byId('budget').hidden = page.epsilons.length === 0;
  const choices = (id, entries, act) => {
    byId(id).append(...entries.map(([value, name]) => el('option', { value }, name)));
    byId(id).addEventListener('change', (event) => act(event.target.value));
  };
  choices('method', page.methods.map((method, k) => [k, method.name]), (value) => change({ method: Number(value) }));
  choices('metric', page.metrics.map((metric) => [metric.name, metric.label]), (value) => change({ metricName: value }));
  choices('graph-choice', page.graphs.map((graph) => [graph.name, graph.name]), (value) => change({ graph: value }));
  byId('graph-control').hidden = page.graphs.length < 2;
  for (const legend of document.querySelectorAll('[data-legend]')) {
    legend.hidden = page.methods.length < 2;
    legend.append(...page.methods.map((method, k) => el('button', { type: 'button', 'data-method': k, title: method.sentence || method.name }, swatch(k), el('span', null, method.name))));
    legend.addEventListener('click', (event) => { const button = event.target.closest('button'); if (button) toggle(Number(button.dataset.method)); });
  }
}

function makeCopy() {
  const button = byId('copy');
  if (!button) return;
  const said = (text) => { button.textContent = text; setTimeout(() => { button.textContent = 'Copy'; }, 1600); };
  const select = () => { window.getSelection().selectAllChildren(byId('command')); said(document.execCommand('copy') ? 'Copied' : 'Selected'); };
  button.addEventListener('click', () => {
    if (!navigator.clipboard) { select(); return; }
    navigator.clipboard.writeText(byId('command').textContent).then(() => said('Copied'), select);
  });
}

function start() {
  const first = page.methods.findIndex((method) => method.kind === 'decor');
  state.method = Math.max(0, first);
  const own = page.epsilons.filter((e) => page.outcomes.some((o) => o.method === state.method && o.epsilon === e.value));
  const offered = own.length ? own : page.epsilons;
  state.epsilon = offered.length ? offered[Math.floor((offered.length - 1) / 2)].value : null;
  const graph = page.methods[state.method].graph;
  state.graph = page.graphs.some((g) => g.name === graph) ? graph : (page.graphs[0] || {}).name || null;
  document.documentElement.classList.add('scripted');
  makeControls();
  makeCopy();
  makeSortable(byId('results'));
  draw();
  window.addEventListener('wheel', hideTip, { passive: true });
  let width = byId('figures').clientWidth;
  new ResizeObserver(() => { const now = byId('figures').clientWidth; if (now && now !== width) { width = now; draw(); } }).observe(byId('figures'));
}

start();
