// The graph that somebody draws: users with names and places, edges between them. Every change is one step to undo.

const sketching = { chosen: null };

function tell(text) { byId('said').textContent = text; }

// the graph that is shown becomes one to draw on
function sketchFromShown() {
  state.sketch = { names: [...drawn.names], edges: drawn.edges.map((edge) => [...edge]), at: drawn.at.map((place) => [...place]) };
  state.topology = DRAWN;
  edited('Now drawing: the graph is yours to change.');
}

// after every change of a drawn graph
function edited(sentence) {
  if (sketching.chosen !== null && !(sketching.chosen < state.sketch.names.length)) sketching.chosen = null;
  // never down to 0: a drawing that begins with one user must not end as a plan against outsiders
  if (state.colluders > 1 && state.colluders >= usersNow()) state.colluders = Math.max(1, usersNow() - 1);
  showSketch();
  showControls();
  remember();
  changed(true);
  if (sentence) tell(sentence);
}

function freeName() {
  const taken = new Set(state.sketch.names);
  let k = 0;
  while (taken.has(String(k))) k += 1;
  return String(k);
}

// beside those who are there, in the first place with room around it
function freePlace() {
  let [best, found] = [-1, [0.5, 0.5]];
  for (let k = 0; k < 80; k += 1) {
    const angle = k * 2.399963;
    const place = [0.5 + 0.055 * Math.sqrt(k) * Math.cos(angle), 0.5 + 0.055 * Math.sqrt(k) * Math.sin(angle)];
    const room = Math.min(0.16, ...state.sketch.at.map(([x, y]) => Math.hypot(x - place[0], y - place[1])));
    if (room > best + 1e-9) [best, found] = [room, place];
  }
  return found;
}

function addUser(place) {
  const name = freeName();
  state.sketch.names.push(name);
  state.sketch.at.push(place || freePlace());
  sketching.chosen = null;
  edited(`User ${name} added.`);
  return state.sketch.names.length - 1;
}

function connected(a, b) { return state.sketch.edges.findIndex(([i, j]) => (i === a && j === b) || (i === b && j === a)); }

function toggleEdge(a, b) {
  const { names, edges } = state.sketch;
  const known = connected(a, b);
  if (known >= 0) edges.splice(known, 1); else edges.push([Math.min(a, b), Math.max(a, b)]);
  sketching.chosen = null;
  edited(`Users ${names[a]} and ${names[b]} are ${known >= 0 ? 'no longer connected' : 'connected'}.`);
}

function removeUser(user) {
  const { names, edges, at } = state.sketch;
  const [name] = names.splice(user, 1);
  at.splice(user, 1);
  state.sketch.edges = edges.filter((edge) => !edge.includes(user)).map((edge) => edge.map((k) => (k > user ? k - 1 : k)));
  sketching.chosen = null;
  edited(`User ${name} removed.`);
}

function renameUser(user, name) {
  const said = name.trim();
  if (said === state.sketch.names[user]) return;
  if (!said || state.sketch.names.includes(said)) { tell(said ? `There is a user ${said} already.` : 'A user needs a name.'); showUsers(); return; }
  state.sketch.names[user] = said;
  edited(`Now called ${said}.`);
}

// the first of two users to be connected, or the second
function pick(user) {
  const { chosen } = sketching;
  if (chosen !== null && chosen !== user) { toggleEdge(chosen, user); return; }
  sketching.chosen = chosen === user ? null : user;
  showChosen();
  tell(sketching.chosen === null ? 'Nobody is chosen.' : `User ${state.sketch.names[user]} is chosen: choose another to connect or disconnect.`);
}

async function openList(file) {
  try {
    const graph = await ask('edge-list', { text: await file.text() }, desk.number);
    if (graph.error) { showProblem(graph.error); return; }
    const fitted = fit(graph.places);
    state.sketch = { names: graph.labels, edges: graph.edges || [], at: fitted };
    state.topology = DRAWN;
    edited(`Opened: ${graph.description}.`);
  } catch (problem) {
    if (!(problem instanceof Trouble)) throw problem;
    trouble(problem.message);
  }
}

function saveList() {
  const url = URL.createObjectURL(new Blob([drawn.text], { type: 'text/plain' }));
  el('a', { href: url, download: 'graph.txt' }).click();
  URL.revokeObjectURL(url);
}

function makeSketch() {
  byId('edit').addEventListener('click', sketchFromShown);
  for (const id of ['add', 'add-row']) byId(id).addEventListener('click', () => addUser());
  byId('remove').addEventListener('click', () => { if (sketching.chosen !== null) removeUser(sketching.chosen); });
  byId('clear').addEventListener('click', () => { state.sketch = { names: [], edges: [], at: [] }; edited('Nobody is left; undo brings everybody back.'); });
  byId('connect').addEventListener('click', () => {
    const [a, b] = [Number(byId('from').value), Number(byId('to').value)];
    if (a === b) { tell('A user cannot be connected to itself: choose two.'); return; }
    toggleEdge(a, b);
  });
  for (const id of ['from', 'to']) byId(id).addEventListener('change', showConnect);
  byId('open').addEventListener('change', (event) => { const [file] = event.target.files; if (file) openList(file); event.target.value = ''; });
  byId('save').addEventListener('click', saveList);
}

function showConnect() {
  const known = connected(Number(byId('from').value), Number(byId('to').value));
  byId('connect').textContent = known >= 0 ? 'Disconnect' : 'Connect';
}

function showTools() {
  const drawing = state.topology === DRAWN;
  byId('edit').hidden = drawing;
  for (const part of document.querySelectorAll('.sketching')) part.hidden = !drawing;
  byId('canvas-hint').textContent = drawing
    ? 'Click an empty place: a new user. Click two users: connect or disconnect. Drag to move.'
    : 'Coloured by ε. Point at a user, or go there with the arrow keys.';
}
