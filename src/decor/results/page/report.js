// Shows the panels of the chosen metric, budget and method, sorts the results, and copies the command. It draws nothing and
// reads no text of the report: every panel is in the page already.

const chosen = { metric: null, epsilon: null, method: null };

function show() {
  for (const panel of document.querySelectorAll('[data-metric], [data-epsilon], [data-method]')) {
    panel.hidden = Object.keys(chosen).some((name) => panel.dataset[name] !== undefined && panel.dataset[name] !== chosen[name]);
  }
  // the row of a method without privacy belongs to every budget
  const rows = [`${chosen.method} ${chosen.epsilon}`, `${chosen.method} `];
  for (const row of document.querySelectorAll('#results tbody tr')) row.classList.toggle('chosen', rows.includes(row.dataset.row));
}

function listen() {
  for (const name of ['metric', 'method']) {
    const select = document.getElementById(name);
    chosen[name] = select.value;
    select.addEventListener('change', () => { chosen[name] = select.value; show(); });
  }
  for (const input of document.querySelectorAll('#epsilon input')) {
    if (input.checked) chosen.epsilon = input.value;
    input.addEventListener('change', () => { chosen.epsilon = input.value; show(); });
  }
}

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.title = 'Sort by this column';
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener('click', () => sortBy(table, heads, column));
  });
}

function sortBy(table, heads, column) {
  const order = heads[column].getAttribute('aria-sort') === 'ascending' ? 'descending' : 'ascending';
  heads.forEach((head, k) => (k === column ? head.setAttribute('aria-sort', order) : head.removeAttribute('aria-sort')));
  const sign = order === 'ascending' ? 1 : -1;
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => {
    const [x, y] = [a, b].map((row) => row.cells[column].dataset.sort);
    // rows without a value come last in both directions
    if (x === '' || y === '') return (x === '') - (y === '');
    const difference = column === 0 ? x.localeCompare(y) : Number(x) - Number(y);
    return sign * difference || a.dataset.number - b.dataset.number;
  });
  table.tBodies[0].append(...rows);
}

function makeCopy(button) {
  const command = document.getElementById('command');
  const say = (text) => { button.textContent = text; setTimeout(() => { button.textContent = 'Copy'; }, 1600); };
  const select = () => { window.getSelection().selectAllChildren(command); say(document.execCommand('copy') ? 'Copied' : 'Selected'); };
  button.addEventListener('click', () => {
    // a page that was opened from disk may have no clipboard
    if (!navigator.clipboard) { select(); return; }
    navigator.clipboard.writeText(command.textContent).then(() => say('Copied'), select);
  });
}

document.documentElement.classList.add('scripted');
listen();
show();
makeSortable(document.getElementById('results'));
if (document.getElementById('copy')) makeCopy(document.getElementById('copy'));
