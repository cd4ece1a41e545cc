// Numbers as text. Epsilons are rounded up in the fourth digit, as everywhere in DECOR.

function number(value) { return value === 'inf' ? Infinity : value; }

function trimmed(text) {
  const [digits, exponent] = text.split('e');
  const short = digits.includes('.') ? digits.replace(/\.?0+$/, '') : digits;
  return exponent === undefined ? short : `${short}e${exponent}`;
}

function fourDigits(value) {
  if (value === 0) return '0';
  const power = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(4)))));
  return trimmed(power < -4 || power >= 5 ? value.toExponential(3) : value.toPrecision(4)).replace(/e([+-])(\d)$/, 'e$10$2');
}

function roundedUp(epsilon) {
  const value = number(epsilon);
  if (!Number.isFinite(value)) return '∞';
  if (Math.abs(value) < 1e-290) return fourDigits(value);
  const unit = 10 ** (Math.floor(Math.log10(Math.abs(value))) - 3);
  return fourDigits(Math.ceil((value / unit) * (1 - 1e-9)) * unit);
}

function shown(metric, value) {
  return Math.abs(value) < 1e5 ? value.toFixed(metric.decimals).replace('-', '−') : value.toPrecision(3);
}

function withSpread(metric, mean, error) {
  return error === null || error === undefined ? shown(metric, mean) : `${shown(metric, mean)} ± ${shown(metric, error)}`;
}

function spreadNote(errors) {
  const bare = errors.filter((error) => error === null).length;
  return bare === errors.length ? 'a single seed' : page.spread + (bare ? ' (no bar for a single seed)' : '');
}

function signed(metric, value) { return (value > 0 ? '+' : '') + shown(metric, value); }

function counted(value) { return value.toLocaleString('en'); }

function listed(names) {
  return names.length > 8 ? `${names.slice(0, 8).join(', ')} and ${names.length - 8} more` : names.join(', ');
}
