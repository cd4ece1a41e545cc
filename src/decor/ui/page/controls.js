// What the person chooses: dials of a slider and a number each, selects, and the history of all of it.

const FIRST = {
  topology: 'ring', users: 16, degree: 4, probability: 0.35, graph_seed: 0, epsilon: 3, delta: 1e-5, steps: 1000, clip: 1,
  colluders: 1, everyone: false, unit: 'user', batch_size: 64, records: 3750, sampling: 'poisson', relation: 'add-remove',
  auto_rounds: true, gossip_rounds: 1, accelerate: '', sketch: null,
};
let state = { ...FIRST };

const TOPOLOGIES = ['ring', 'torus', 'grid', 'complete', 'star', 'path', 'hypercube', 'random-regular', 'erdos-renyi'];
const DRAWN = 'drawn';

// scale: how the slider's places become numbers; `most` may depend on the other controls
const DIALS = {
  users: { label: 'Users', low: 2, high: () => 64, scale: 'whole', graph: true },
  degree: { label: 'Neighbours of each', low: 1, high: () => Math.min(16, state.users - 1), scale: 'whole', graph: true },
  probability: { label: 'Probability of an edge', low: 0.02, high: () => 1, scale: 'linear', graph: true },
  graph_seed: { label: 'Seed of the graph', low: 0, high: () => 20, scale: 'whole', graph: true },
  epsilon: { label: 'ε', low: 0.1, high: () => 100, scale: 'log' },
  steps: { label: 'Steps', low: 1, high: () => 100000, scale: 'log-whole' },
  clip: { label: 'Clip', low: 0.01, high: () => 100, scale: 'log' },
  colluders: { label: 'Users who collude', low: 0, high: () => Math.max(1, Math.min(6, usersNow() - 1)), scale: 'whole' },
  gossip_rounds: { label: 'Rounds of gossip in a step', low: 1, high: () => 20, scale: 'whole' },
};
const PLACES = 400; // of a logarithmic slider

function usersNow() { return state.topology === DRAWN ? state.sketch.names.length : state.users; }

// two digits below a thousand for steps, three for the others: the number beside the slider is what is asked
function rounded(value, digits) { return value === 0 ? 0 : Number(value.toPrecision(digits)); }

function fromPlace(dial, place) {
  const { low, high, scale } = dial;
  if (scale === 'whole') return Math.round(place);
  if (scale === 'linear') return rounded(place, 2);
  const value = low * (high() / low) ** (place / PLACES);
  return scale === 'log' ? rounded(value, 3) : Math.max(1, Math.round(rounded(value, 2)));
}

function toPlace(dial, value) {
  const { low, high, scale } = dial;
  const inside = Math.min(Math.max(value, low), high());
  return scale.startsWith('log') ? PLACES * (Math.log(inside / low) / Math.log(high() / low)) : inside;
}

// numbers of users that a family has: others are refused, so the slider passes over them
function exists(users) {
  const divided = (k) => users % k === 0;
  if (state.topology === 'hypercube') return Number.isInteger(Math.log2(users));
  if (state.topology === 'torus') return [2, 3, 5, 7, 11, 13].some((k) => divided(k) && users / k >= k);
  if (state.topology === 'random-regular') return users > state.degree && (users * state.degree) % 2 === 0;
  return state.topology === 'ring' ? users >= 2 : users >= 1;
}

function nearestUsers(users) {
  for (let k = 0; k < 300; k += 1) {
    for (const near of [users + k, users - k]) if (near >= 2 && near <= 256 && exists(near)) return near;
  }
  return users;
}

function makeDials() {
  for (const place of document.querySelectorAll('[data-dial]')) {
    const name = place.dataset.dial;
    const dial = DIALS[name];
    const whole = dial.scale.endsWith('whole');
    const range = el('input', { type: 'range', id: `${name}-slider`, 'aria-label': `${dial.label}, slider` });
    const number = el('input', { type: 'number', id: name, step: whole ? 1 : 'any', inputmode: whole ? 'numeric' : 'decimal' });
    place.append(el('label', { for: name }, dial.label), number, range);
    range.addEventListener('input', () => {
      const value = fromPlace(dial, Number(range.value));
      choose(name, name === 'users' ? nearestUsers(value) : value);
    });
    range.addEventListener('change', remember);
    number.addEventListener('input', () => choose(name, number.value === '' ? null : Number(number.value), number));
    number.addEventListener('change', () => { remember(); showControls(); });
  }
}

// typing must not be corrected under the person's hands: `typed` is left as it is
function choose(name, value, typed) {
  if (state[name] === value) return;
  state[name] = value;
  if (name === 'degree' && !exists(state.users)) state.users = nearestUsers(state.users);
  if (name === 'sampling') state.relation = value === 'fixed' ? 'replace' : state.relation;
  showControls(typed);
  changed(Boolean(DIALS[name]?.graph) || name === 'topology');
}

function chooseTopology(name) {
  if (name === DRAWN) { sketchFromShown(); return; }
  state.topology = name;
  if (!exists(state.users)) state.users = nearestUsers(state.users);
  if (state.colluders >= state.users) state.colluders = Math.max(0, state.users - 1);
  showControls();
  changed(true);
  remember();
}

function makeControls() {
  makeDials();
  byId('topology').append(...TOPOLOGIES.map((name) => el('option', { value: name }, name)), el('option', { value: DRAWN }, 'drawn by hand'));
  byId('topology').addEventListener('change', (event) => chooseTopology(event.target.value));
  for (const name of ['delta', 'batch_size', 'records']) {
    byId(name).addEventListener('input', (event) => choose(name, event.target.value === '' ? null : Number(event.target.value), event.target));
    byId(name).addEventListener('change', remember);
  }
  for (const name of ['unit', 'sampling', 'relation', 'accelerate']) {
    byId(name).addEventListener('change', (event) => { choose(name, event.target.value); remember(); });
  }
  for (const name of ['everyone', 'auto_rounds']) {
    byId(name).addEventListener('change', (event) => { choose(name, event.target.checked); remember(); });
  }
  byId('controls').addEventListener('submit', (event) => event.preventDefault());
  byId('undo').addEventListener('click', () => travel(-1));
  byId('redo').addEventListener('click', () => travel(1));
  document.addEventListener('keydown', (event) => {
    const typing = event.target.matches?.('input:not([type=range], [type=checkbox]), textarea');
    if (typing || !(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== 'z') return;
    event.preventDefault();
    travel(event.shiftKey ? 1 : -1);
  });
}

function showControls(typed) {
  const takes = { degree: ['random-regular'], probability: ['erdos-renyi'], graph_seed: ['random-regular', 'erdos-renyi'] };
  for (const place of document.querySelectorAll('[data-dial]')) {
    const name = place.dataset.dial;
    const dial = DIALS[name];
    const [label, number, range] = place.children;
    const log = dial.scale.startsWith('log');
    place.hidden = Boolean(takes[name] && !takes[name].includes(state.topology)) || (name === 'users' && state.topology === DRAWN)
      || (name === 'gossip_rounds' && state.auto_rounds);
    Object.assign(range, { min: log ? 0 : dial.low, max: log ? PLACES : dial.high(), step: dial.scale === 'linear' ? 0.01 : 1 });
    range.value = toPlace(dial, state[name] ?? dial.low);
    range.setAttribute('aria-valuetext', `${state[name] ?? 'nothing'}`);
    if (number !== typed) number.value = written(state[name]);
    range.disabled = number.disabled = name === 'colluders' && state.everyone;
  }
  for (const name of ['topology', 'delta', 'unit', 'batch_size', 'records', 'sampling', 'relation', 'accelerate']) {
    if (byId(name) !== typed) byId(name).value = written(state[name]);
  }
  byId('everyone').checked = state.everyone;
  byId('auto_rounds').checked = state.auto_rounds;
  byId('example').hidden = state.unit !== 'example';
  byId('weights').hidden = state.auto_rounds || !(state.gossip_rounds > 1);
  byId('relation').options[0].disabled = state.sampling === 'fixed';
  byId('adversary').textContent = adversarySentence();
  showTools();
}

// small numbers as people write them, 1e-5
function written(value) { return typeof value === 'number' && value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential() : value ?? ''; }

function adversarySentence() {
  const q = state.colluders;
  if (state.everyone) return 'Local DP: what nobody’s help can break.';
  if (q === 0) return 'An eavesdropper who reads every message.';
  return q === 1 ? 'Any one curious user, who reads every message.' : `Any ${q} colluding users, who read every message.`;
}

function adversaryNow() {
  if (state.everyone) return 'everyone';
  return ['eavesdropper', 'curious'][state.colluders] ?? `colluding:${state.colluders}`;
}

function graphNow() {
  if (state.topology === DRAWN) return { drawn: { names: state.sketch.names, edges: state.sketch.edges } };
  const { topology, users, degree, probability, graph_seed: seed } = state;
  const random = { 'random-regular': { degree, graph_seed: seed }, 'erdos-renyi': { probability, graph_seed: seed } }[topology];
  return { topology, users, ...random };
}

function questionNow() {
  const { epsilon, delta, steps, clip, unit, batch_size: batch, records, sampling, relation, gossip_rounds: rounds } = state;
  const example = unit === 'example' ? { unit, batch_size: batch, records, sampling, relation } : {};
  const weights = rounds > 1 && state.accelerate ? { accelerate: state.accelerate } : {};
  const gossip = state.auto_rounds ? { gossip_rounds: 'auto' } : { gossip_rounds: rounds, ...weights };
  // what is empty is asked as no number, so that the answer is a sentence about it and not about a default
  const filled = Object.fromEntries(Object.entries({ epsilon, delta, steps, clip, ...example, ...gossip }).map(([k, v]) => [k, v ?? 'nothing']));
  return { ...graphNow(), ...filled, adversary: adversaryNow() };
}

// Undo goes back over everything that was chosen or drawn, not over every place a slider passed.
const past = { states: [], at: -1 };

function remember() {
  const now = JSON.stringify(state);
  sessionStorage.setItem('state', now);
  if (past.states[past.at] === now) return;
  past.states = [...past.states.slice(Math.max(0, past.at - 98), past.at + 1), now];
  past.at = past.states.length - 1;
  showHistory();
}

function travel(way) {
  const at = past.at + way;
  if (at < 0 || at >= past.states.length) return;
  past.at = at;
  state = JSON.parse(past.states[at]);
  sessionStorage.setItem('state', past.states[at]);
  sketching.chosen = null;
  if (state.topology === DRAWN) showSketch();
  showControls();
  showHistory();
  changed(true);
}

function showHistory() {
  byId('undo').disabled = past.at <= 0;
  byId('redo').disabled = past.at >= past.states.length - 1;
}

function restore() {
  try {
    const kept = JSON.parse(sessionStorage.getItem('state'));
    if (kept && typeof kept === 'object' && (kept.topology !== DRAWN || kept.sketch)) state = { ...FIRST, ...kept };
  } catch { state = { ...FIRST }; }
}
