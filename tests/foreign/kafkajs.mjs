// kafkajs against a broker.
import assert from 'node:assert/strict'
import kafkajs from 'kafkajs'
import { Arrivals, numbers, places, run } from './scenarios.mjs'

const { CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = kafkajs

const client = bootstrap => new Kafka({ clientId: 'kafkajs', brokers: [bootstrap], logLevel: logLevel.ERROR })

async function admin (kafka, later) {
  const found = kafka.admin()
  await found.connect()
  later(() => found.disconnect())
  return found
}

async function producer (kafka, later, options) {
  const found = kafka.producer({ createPartitioner: kafkajs.Partitioners.DefaultPartitioner, ...options })
  await found.connect()
  later(() => found.disconnect())
  return found
}

// A running consumer and what it gets. It has joined its group.
async function consumer (kafka, later, groupId, topic, options = {}) {
  const { run: running = {}, ...more } = options
  const found = kafka.consumer({ groupId, sessionTimeout: 10_000, heartbeatInterval: 200, ...more })
  const arrivals = new Arrivals()
  await found.connect()
  await found.subscribe({ topics: [topic], fromBeginning: true })
  const joins = new Arrivals()
  found.on(found.events.GROUP_JOIN, ({ payload }) => joins.add(payload.memberAssignment[topic] ?? []))
  await found.run({
    ...running,
    eachMessage: async ({ partition, message }) => {
      arrivals.add({ partition, offset: Number(message.offset), value: String(message.value), message })
    }
  })
  await joins.count(1)
  let left = false
  const leave = async () => {
    if (!left) await found.disconnect()
    left = true
  }
  later(leave)
  return { consumer: found, arrivals, joins, leave }
}

const values = arrivals => arrivals.map(({ value }) => value).sort()

async function committed (asAdmin, groupId, topic) {
  const [{ partitions }] = await asAdmin.fetchOffsets({ groupId, topics: [topic] })
  return partitions.sort((a, b) => a.partition - b.partition).map(({ offset }) => offset)
}

await run({
  async 'produce and consume' (bootstrap, later) {
    const kafka = client(bootstrap)
    await (await admin(kafka, later)).createTopics({ topics: [{ topic: 'js-plain', numPartitions: 3 }] })
    const sending = await producer(kafka, later)
    const sent = numbers(300)
    for (const compression of [CompressionTypes.None, CompressionTypes.GZIP]) {
      await sending.send({
        topic: 'js-plain',
        compression,
        messages: sent.map(value => ({ key: value, value, headers: { codec: String(compression) } }))
      })
    }
    const { arrivals } = await consumer(kafka, later, 'js-plain', 'js-plain')
    const found = await arrivals.count(600)
    assert.deepEqual(values(found), [...sent, ...sent].sort())
    assert.deepEqual(new Set(found.map(({ message }) => String(message.headers.codec))), new Set(['0', '1']))
    assert.deepEqual(new Set(found.map(({ partition }) => partition)), new Set([0, 1, 2]))
  },

  async 'two idempotent producers' (bootstrap, later) {
    const kafka = client(bootstrap)
    await (await admin(kafka, later)).createTopics({ topics: [{ topic: 'js-idempotent' }] })
    const sent = []
    await Promise.all(
      ['a', 'b'].map(async name => {
        const sending = await producer(kafka, later, { idempotent: true, maxInFlightRequests: 1 })
        for (const value of numbers(100, name)) {
          sent.push(value)
          await sending.send({ topic: 'js-idempotent', acks: -1, messages: [{ value }] })
        }
      })
    )
    const { arrivals } = await consumer(kafka, later, 'js-idempotent', 'js-idempotent')
    assert.deepEqual(values(await arrivals.count(200)), sent.sort())
  },

  async 'a group rebalances' (bootstrap, later) {
    const kafka = client(bootstrap)
    await (await admin(kafka, later)).createTopics({ topics: [{ topic: 'js-group', numPartitions: 4 }] })
    const first = await consumer(kafka, later, 'js-group', 'js-group')
    assert.deepEqual(first.joins.all[0].sort(), [0, 1, 2, 3])
    const second = await consumer(kafka, later, 'js-group', 'js-group')
    await first.joins.until(all => all.at(-1).length === 2)
    await second.joins.until(all => all.at(-1).length === 2)
    assert.deepEqual([...first.joins.all.at(-1), ...second.joins.all.at(-1)].sort(), [0, 1, 2, 3])
    const sending = await producer(kafka, later)
    const messages = numbers(40).map((value, number) => ({ value, partition: number % 4 }))
    await sending.send({ topic: 'js-group', messages })
    await first.arrivals.count(20)
    await second.arrivals.count(20)
    await second.leave()
    await first.joins.until(all => all.at(-1).length === 4)
    await sending.send({ topic: 'js-group', messages })
    await first.arrivals.until(all => places([...all, ...second.arrivals.all]).size === 80)
  },

  async 'committed offsets' (bootstrap, later) {
    const kafka = client(bootstrap)
    const asAdmin = await admin(kafka, later)
    await asAdmin.createTopics({ topics: [{ topic: 'js-commits' }] })
    const sending = await producer(kafka, later)
    await sending.send({ topic: 'js-commits', messages: numbers(10).map(value => ({ value })) })
    const first = await consumer(kafka, later, 'js-commits', 'js-commits')
    await first.arrivals.count(10)
    await first.leave()
    assert.deepEqual(await committed(asAdmin, 'js-commits', 'js-commits'), ['10'])
    await sending.send({ topic: 'js-commits', messages: [{ value: 'next' }] })
    const second = await consumer(kafka, later, 'js-commits', 'js-commits')
    assert.deepEqual(values(await second.arrivals.count(1)), ['next'])
  },

  async 'offsets are reset with -1 and -2' (bootstrap, later) {
    const kafka = client(bootstrap)
    const asAdmin = await admin(kafka, later)
    await asAdmin.createTopics({ topics: [{ topic: 'js-reset' }] })
    const sending = await producer(kafka, later)
    await sending.send({ topic: 'js-reset', messages: numbers(10).map(value => ({ value })) })
    await asAdmin.resetOffsets({ groupId: 'js-reset', topic: 'js-reset', earliest: true })
    assert.deepEqual(await committed(asAdmin, 'js-reset', 'js-reset'), ['-2'])
    const first = await consumer(kafka, later, 'js-reset', 'js-reset')
    await first.arrivals.count(10)
    await first.leave()
    assert.deepEqual(await committed(asAdmin, 'js-reset', 'js-reset'), ['10'])
    await asAdmin.resetOffsets({ groupId: 'js-reset', topic: 'js-reset', earliest: false })
    assert.deepEqual(await committed(asAdmin, 'js-reset', 'js-reset'), ['-1'])
    await asAdmin.setOffsets({ groupId: 'js-reset', topic: 'js-reset', partitions: [{ partition: 0, offset: '7' }] })
    const second = await consumer(kafka, later, 'js-reset', 'js-reset')
    assert.deepEqual(values(await second.arrivals.count(3)), ['7', '8', '9'])
  },

  async administration (bootstrap, later) {
    const kafka = client(bootstrap)
    const asAdmin = await admin(kafka, later)
    const topic = 'js-admin'
    const configEntries = [{ name: 'retention.ms', value: '60000' }]
    assert.equal(await asAdmin.createTopics({ topics: [{ topic, numPartitions: 2, configEntries }] }), true)
    assert.equal(await asAdmin.createTopics({ topics: [{ topic, numPartitions: 2 }] }), false)
    await asAdmin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
    const described = await asAdmin.fetchTopicMetadata({ topics: [topic] })
    assert.equal(described.topics[0].partitions.length, 3)
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
    await asAdmin.alterConfigs({
      resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '90000' }] }],
      validateOnly: false
    })
    const { resources } = await asAdmin.describeConfigs({ resources: [{ ...resource, configNames: ['retention.ms'] }] })
    assert.deepEqual(resources[0].configEntries.map(({ configValue }) => configValue), ['90000'])
    const sending = await producer(kafka, later)
    await sending.send({ topic, messages: numbers(5).map(value => ({ value, partition: 1 })) })
    const offsets = await asAdmin.fetchTopicOffsets(topic)
    assert.deepEqual(offsets.map(({ partition, high }) => [partition, high]).sort(), [[0, '0'], [1, '5'], [2, '0']])
    await asAdmin.deleteTopicRecords({ topic, partitions: [{ partition: 1, offset: '2' }] })
    assert.equal((await asAdmin.fetchTopicOffsets(topic)).find(({ partition }) => partition === 1).low, '2')
    const joined = await consumer(kafka, later, 'js-admin', topic)
    await joined.arrivals.count(3)
    const { groups } = await asAdmin.describeGroups(['js-admin'])
    assert.deepEqual(groups.map(({ state, members }) => [state, members.length]), [['Stable', 1]])
    await joined.leave()
    assert.ok((await asAdmin.listGroups()).groups.some(({ groupId }) => groupId === 'js-admin'))
    await asAdmin.deleteGroups(['js-admin'])
    await asAdmin.deleteTopics({ topics: [topic] })
    assert.ok(!(await asAdmin.listTopics()).includes(topic))
    const cluster = await asAdmin.describeCluster()
    assert.deepEqual(cluster.brokers.map(({ host, port }) => `${host}:${port}`), [bootstrap])
  }
})
