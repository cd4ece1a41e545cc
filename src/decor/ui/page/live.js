// A federation as it is now: figures, the graph, details of the chosen user, and the same as a table.

const live = { found: null, chosen: null, rows: new Map(), heard: '', heardAt: -Infinity, details: '' };
const HEARD_EVERY = 5000; // milliseconds between two announcements
const UNKNOWN = 'not known';

function drawLive(found) {
  live.found = found;
  const warned = byId('live-warnings');
  if ([...warned.children].map((each) => each.textContent).join() !== found.warnings.join()) {
    warned.replaceChildren(...found.warnings.map((text) => el('p', { class: 'notice' }, text)));
  }
  byId('watch-figures').replaceChildren(...liveFigures(found));
  // many need the whole width; the details are then below the graph
  byId('live').classList.toggle('many', found.nodes.length > 24);
  buildPeers(found);
  paintPeers(found);
  showLegend(found);
  showTable(found);
  showDetails();
}

function liveFigures(found) {
  const { slowest, fastest, steps } = found;
  const small = slowest === fastest || slowest === null ? '' : `; the first is at ${counted(fastest)}`;
  const [spent, plan] = [found.epsilon ?? UNKNOWN, found.of_plan];
  return [
    progressFigure('at work', 'live-working', counted(found.working), found.asked ? found.working / found.asked : 0, `of ${counted(found.asked)} users`),
    progressFigure('step of the slowest', 'live-step', slowest === null ? UNKNOWN : counted(slowest), steps ? slowest / steps : 0, steps ? `of ${counted(steps)}${small}` : ''),
    progressFigure('ε so far', 'live-epsilon', spent, found.spent_part ?? 0, plan ? `of ${plan}, which the whole plan promises` : ''),
    keyFigure('live-noise', 'noise left', found.noise_left ? `${found.noise_left} ×` : UNKNOWN, 'the planned noise, where it is most'),
  ];
}

// what is worth hearing: another state of somebody, a warning, or another quarter of the steps
function announceLive(found) {
  if (!found || found.kind !== 'federation' || byId('watch').hidden) return;
  const quarter = found.steps ? Math.floor((4 * found.slowest) / found.steps) : 0;
  const key = JSON.stringify([found.nodes.map((node) => [node.name, node.state]), found.warnings, quarter]);
  if (key === live.heard || performance.now() < live.heardAt + HEARD_EVERY) return;
  Object.assign(live, { heard: key, heardAt: performance.now() });
  tell([found.said, ...found.warnings].join(' '));
}

function showLegend(found) {
  const states = Object.keys(SIGNS).map((state) => [state, found.nodes.filter((node) => node.state === state).length]).filter(([, count]) => count);
  const links = Object.keys(EDGE_NAMES).filter((state) => found.edges.some((edge) => edge.state === state));
  const line = (state) => svg('svg', { class: 'icon line', viewBox: '0 0 28 10', 'aria-hidden': 'true' }, svg('path', { class: `link l-${state}`, d: 'M1,5H27' }));
  byId('live-legend').replaceChildren(...states.map(([state, count]) => el('li', null, icon(state), `${count} ${found.labels[state]}`)), ...links.map((state) => el('li', null, line(state), EDGE_NAMES[state])));
}

function choosePeer(name) {
  live.chosen = name;
  paintPeers(live.found);
  showTable(live.found);
  showDetails();
}

function of(value, all) { return value === null ? UNKNOWN : all === null ? counted(value) : `${counted(value)} of ${counted(all)}`; }

function connectionsOf(user) {
  const known = user.neighbours.filter((other) => other.state !== 'unknown');
  const away = known.filter((other) => other.state === 'broken').map((other) => other.name);
  if (!known.length) return user.neighbours.length ? UNKNOWN : 'none';
  return `${counted(known.length - away.length)} of ${counted(user.neighbours.length)}${away.length ? `, not ${listed(away)}` : ''}`;
}

const COLUMNS = [
  ['state', (user) => user.text], ['step', (user) => of(user.step, user.steps)], ['noise left, × planned', (user) => user.noise_left ?? UNKNOWN],
  ['ε so far', (user) => user.epsilon ?? UNKNOWN], ['ε of the plan', (user) => user.of_plan ?? UNKNOWN], ['steps missed', (user) => of(user.missed, null)], ['connected', connectionsOf],
];

const NUMBERS = [1, 2, 3, 4, 5];

// rows stay, and only texts that change are written: who reads the table, or is in it, is not disturbed
function showTable(found) {
  const table = byId('live-table');
  if (!table.tBodies.length) {
    const heads = [el('th', { scope: 'col' }, 'user'), ...COLUMNS.map(([head], column) => el('th', { scope: 'col', class: NUMBERS.includes(column) ? 'number' : null }, head))];
    table.append(el('caption', { class: 'unseen' }, 'All users of the federation, with the facts of the graph'), el('thead', null, el('tr', null, ...heads)), el('tbody'));
  }
  for (const user of found.nodes) if (!live.rows.has(user.name)) live.rows.set(user.name, tableRow(user.name));
  const rows = found.nodes.map((user) => live.rows.get(user.name));
  if (rows.length !== table.tBodies[0].rows.length || rows.some((row, k) => table.tBodies[0].rows[k] !== row.node)) table.tBodies[0].replaceChildren(...rows.map((row) => row.node));
  found.nodes.forEach((user, k) => {
    const row = rows[k];
    row.node.className = user.name === live.chosen ? 'chosen' : '';
    row.button.setAttribute('aria-pressed', String(user.name === live.chosen));
    if (row.state !== user.state) row.sign.replaceChildren(icon(user.state));
    row.state = user.state;
    COLUMNS.forEach(([, text], column) => { const now = text(user); if (row.cells[column].textContent !== now) row.cells[column].textContent = now; });
  });
}

function tableRow(name) {
  const button = el('button', { type: 'button', class: 'plain' }, name);
  const sign = el('span', { class: 'sign-cell' });
  const cells = COLUMNS.map(() => el('span'));
  button.addEventListener('click', () => choosePeer(live.chosen === name ? null : name));
  const node = el('tr', null, el('th', { scope: 'row' }, button), ...cells.map((cell, column) => el('td', { class: NUMBERS.includes(column) ? 'number' : null }, column ? null : sign, cell)));
  return { node, button, sign, cells, state: null };
}

function facts(user) {
  const ledger = user.ledger_epsilon ? `${user.ledger_epsilon}${user.ledger_limit ? ` of ${user.ledger_limit}` : ''}` : null;
  return [
    ['State', user.text], ['Step', of(user.step, user.steps)], ['Last progress', user.progress || null], ['Noise left', user.noise_left && `${user.noise_left} × planned`],
    ['ε so far', user.epsilon && `${user.epsilon} of ${user.of_plan ?? UNKNOWN}`], ['δ', user.delta], ['ε of all its runs', ledger],
    ['Messages', user.messages === null ? null : counted(user.messages)], ['Steps missed', user.missed === null ? null : counted(user.missed)], ['Late messages', user.late === null ? null : counted(user.late)],
    ['Federation', user.federation || null], ['File', user.digest ? `${user.digest}…` : null], ['Asked at', user.source || null],
  ].filter(([, text]) => text !== null);
}

function showDetails() {
  const user = live.found.nodes.find((node) => node.name === live.chosen);
  const now = JSON.stringify(user ?? null);
  if (now === live.details) return;
  live.details = now;
  if (!user) { byId('live-details').replaceChildren(el('h3', { id: 'live-name' }, 'Nobody is chosen'), el('p', { class: 'quiet' }, 'Choose a user in the graph or in the table.')); return; }
  const others = user.neighbours.map((other) => el('li', { class: `n-${other.state}` }, el('b', null, other.name), `: ${EDGE_NAMES[other.state]}${other.way === 'relay' ? ' through a relay' : ''}${other.problem ? ` (${other.problem})` : ''}`));
  byId('live-details').replaceChildren(
    el('h3', { id: 'live-name' }, icon(user.state), el('span', null, user.name)),
    el('dl', { class: 'pairs' }, ...facts(user).map(([name, text]) => el('div', null, el('dt', null, name), el('dd', null, text)))),
    el('h4', null, others.length ? 'Neighbours' : 'No neighbours are known'), el('ul', null, ...others),
  );
}
