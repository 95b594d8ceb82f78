// Runs one scenario of a client: node CLIENT.mjs SCENARIO BOOTSTRAP. It ends with exit code 0, or tells what is
// not as it should be. How long it may take is for whoever started it to say.

export async function run (scenarios) {
  const [name, bootstrap] = process.argv.slice(2)
  if (!(name in scenarios)) {
    console.log(Object.keys(scenarios).join('\n'))
    return
  }
  const closing = []
  const later = close => closing.push(close)
  await scenarios[name](bootstrap, later)
  for (const close of closing.reverse()) await close()
  process.exit(0) // whatever timers a client has left behind
}

export const numbers = (count, prefix = '') => Array.from({ length: count }, (_, number) => `${prefix}${number}`)

// Where records stand: one that comes again, as after a rebalance it may, counts once.
export const places = arrivals => new Set(arrivals.map(({ partition, offset }) => `${partition}/${offset}`))

// A place for what arrives, to be waited for.
export class Arrivals {
  constructor () {
    this.all = []
    this.waiting = []
  }

  add (what) {
    this.all.push(what)
    this.waiting = this.waiting.filter(({ enough, done }) => !(enough(this.all) && (done(this.all), true)))
  }

  until (enough) {
    return new Promise(done => (enough(this.all) ? done(this.all) : this.waiting.push({ enough, done })))
  }

  count (number) {
    return this.until(all => all.length >= number)
  }
}
