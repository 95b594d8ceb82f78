// @platformatic/kafka against a broker.
import assert from 'node:assert/strict'
import { Admin, Consumer, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'
import { Arrivals, numbers, places, run } from './scenarios.mjs'

const TOPIC = 2

function admin (bootstrap, later) {
  const found = new Admin({ clientId: 'platformatic', bootstrapBrokers: [bootstrap] })
  later(() => found.close())
  return found
}

function producer (bootstrap, later, options = {}) {
  const found = new Producer({
    clientId: 'platformatic',
    bootstrapBrokers: [bootstrap],
    serializers: stringSerializers,
    ...options
  })
  later(() => found.close())
  return found
}

// A consumer that has joined its group, and what it gets.
async function consumer (bootstrap, later, groupId, topic, options = {}) {
  const found = new Consumer({
    clientId: 'platformatic',
    groupId,
    bootstrapBrokers: [bootstrap],
    deserializers: stringDeserializers,
    sessionTimeout: 10_000,
    rebalanceTimeout: 10_000,
    heartbeatInterval: 200,
    maxWaitTime: 200
  })
  const joins = new Arrivals()
  found.on('consumer:group:join', () => {
    joins.add(found.assignments.filter(each => each.topic === topic).flatMap(({ partitions }) => partitions))
  })
  const stream = await found.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest', ...options })
  const arrivals = new Arrivals()
  stream.on('data', message => arrivals.add(message))
  const errors = []
  stream.on('error', error => errors.push(error))
  let left = false
  const leave = async () => {
    if (!left) await found.close(true)
    left = true
    assert.deepEqual(errors, [])
  }
  later(leave)
  await joins.count(1)
  return { consumer: found, arrivals, joins, leave }
}

const values = arrivals => arrivals.map(({ value }) => value).sort()

async function committed (asAdmin, groupId, topic) {
  const [{ topics }] = await asAdmin.listConsumerGroupOffsets({ groups: [groupId] })
  const { partitions } = topics.find(({ name }) => name === topic)
  return partitions.map(({ committedOffset }) => committedOffset)
}

await run({
  async 'produce and consume' (bootstrap, later) {
    const topic = 'pt-plain'
    await admin(bootstrap, later).createTopics({ topics: [topic], partitions: 3, replicas: 1 })
    const sending = producer(bootstrap, later)
    const sent = numbers(300)
    const codecs = ['none', 'gzip', 'zstd'].filter(codec => codec !== 'zstd' || process.versions.node >= '22.15')
    for (const compression of codecs) {
      const messages = sent.map(value => ({ topic, key: value, value, headers: { codec: compression } }))
      await sending.send({ messages, compression })
    }
    const { arrivals } = await consumer(bootstrap, later, topic, topic)
    const found = await arrivals.count(300 * codecs.length)
    assert.deepEqual(values(found), codecs.flatMap(() => sent).sort())
    assert.deepEqual(new Set(found.map(({ headers }) => headers.get('codec'))), new Set(codecs))
    assert.deepEqual(new Set(found.map(({ partition }) => partition)), new Set([0, 1, 2]))
  },

  async 'two idempotent producers' (bootstrap, later) {
    const topic = 'pt-idempotent'
    await admin(bootstrap, later).createTopics({ topics: [topic], partitions: 1, replicas: 1 })
    const sent = []
    await Promise.all(
      ['a', 'b'].map(async name => {
        const sending = producer(bootstrap, later, { idempotent: true, acks: -1 })
        for (const value of numbers(100, name)) {
          sent.push(value)
          await sending.send({ messages: [{ topic, value }] })
        }
      })
    )
    const { arrivals } = await consumer(bootstrap, later, topic, topic)
    assert.deepEqual(values(await arrivals.count(200)), sent.sort())
  },

  async 'a group rebalances' (bootstrap, later) {
    const topic = 'pt-group'
    await admin(bootstrap, later).createTopics({ topics: [topic], partitions: 4, replicas: 1 })
    const first = await consumer(bootstrap, later, topic, topic)
    assert.deepEqual(first.joins.all[0].sort(), [0, 1, 2, 3])
    const second = await consumer(bootstrap, later, topic, topic)
    await first.joins.until(all => all.at(-1).length === 2)
    await second.joins.until(all => all.at(-1).length === 2)
    assert.deepEqual([...first.joins.all.at(-1), ...second.joins.all.at(-1)].sort(), [0, 1, 2, 3])
    const sending = producer(bootstrap, later)
    const messages = numbers(40).map((value, number) => ({ topic, value, partition: number % 4 }))
    await sending.send({ messages })
    await first.arrivals.count(20)
    await second.arrivals.count(20)
    await second.leave()
    await first.joins.until(all => all.at(-1).length === 4)
    await sending.send({ messages })
    await first.arrivals.until(all => places([...all, ...second.arrivals.all]).size === 80)
  },

  async 'committed offsets' (bootstrap, later) {
    const topic = 'pt-commits'
    const asAdmin = admin(bootstrap, later)
    await asAdmin.createTopics({ topics: [topic], partitions: 1, replicas: 1 })
    const sending = producer(bootstrap, later)
    await sending.send({ messages: numbers(10).map(value => ({ topic, value })) })
    const first = await consumer(bootstrap, later, topic, topic, { autocommit: false })
    const found = await first.arrivals.count(10)
    await found.at(-1).commit()
    await first.leave()
    assert.deepEqual(await committed(asAdmin, topic, topic), [10n])
    await sending.send({ messages: [{ topic, value: 'next' }] })
    const second = await consumer(bootstrap, later, topic, topic)
    assert.deepEqual(values(await second.arrivals.count(1)), ['next'])
  },

  async 'offsets are reset with -1 and -2' (bootstrap, later) {
    const topic = 'pt-reset'
    const asAdmin = admin(bootstrap, later)
    await asAdmin.createTopics({ topics: [topic], partitions: 1, replicas: 1 })
    const sending = producer(bootstrap, later)
    await sending.send({ messages: numbers(10).map(value => ({ topic, value })) })
    const reset = offset =>
      asAdmin.alterConsumerGroupOffsets({
        groupId: topic,
        topics: [{ name: topic, partitionOffsets: [{ partition: 0, offset }] }]
      })
    for (const offset of [-1n, -2n]) {
      await reset(offset)
      assert.deepEqual(await committed(asAdmin, topic, topic), [offset])
    }
    await reset(7n)
    const { arrivals } = await consumer(bootstrap, later, topic, topic)
    assert.deepEqual(values(await arrivals.count(3)), ['7', '8', '9'])
  },

  async administration (bootstrap, later) {
    const topic = 'pt-admin'
    const asAdmin = admin(bootstrap, later)
    const configs = [{ name: 'retention.ms', value: '60000' }]
    const [made] = await asAdmin.createTopics({ topics: [topic], partitions: 2, replicas: 1, configs })
    assert.deepEqual([made.name, made.partitions], [topic, 2])
    await assert.rejects(asAdmin.createTopics({ topics: [topic], partitions: 2, replicas: 1 }))
    await asAdmin.createPartitions({ topics: [{ name: topic, count: 3 }] })
    const retention = async () => {
      const resources = [{ resourceType: TOPIC, resourceName: topic, configurationKeys: ['retention.ms'] }]
      return (await asAdmin.describeConfigs({ resources }))[0].configs.map(({ value }) => value)
    }
    assert.deepEqual(await retention(), ['60000'])
    const change = { name: 'retention.ms', configOperation: 0, value: '90000' }
    await asAdmin.incrementalAlterConfigs({
      resources: [{ resourceType: TOPIC, resourceName: topic, configs: [change] }]
    })
    assert.deepEqual(await retention(), ['90000'])
    await producer(bootstrap, later).send({ messages: numbers(5).map(value => ({ topic, value, partition: 1 })) })
    await asAdmin.deleteRecords({ topics: [{ name: topic, partitions: [{ partition: 1, offset: 2n }] }] })
    const joined = await consumer(bootstrap, later, topic, topic)
    assert.deepEqual(values(await joined.arrivals.count(3)), ['2', '3', '4'])
    const described = await asAdmin.describeGroups({ groups: [topic], includeAuthorizedOperations: true })
    const { state, members, authorizedOperations } = described.get(topic)
    assert.deepEqual([state, members.size], ['STABLE', 1])
    assert.ok(authorizedOperations > 0)
    await joined.leave()
    assert.ok((await asAdmin.listGroups()).has(topic))
    await asAdmin.deleteGroups({ groups: [topic] })
    await asAdmin.deleteTopics({ topics: [topic] })
    assert.ok(!(await asAdmin.listTopics()).includes(topic))
  }
})
