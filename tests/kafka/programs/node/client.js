// Writes values 0 to COUNT-1 with idempotence, or reads them in a group: SEEDS TOPIC write|read COUNT.
const { Kafka, logLevel } = require("kafkajs");

const [seeds, topic, what, count] = process.argv.slice(2);
const kafka = new Kafka({ brokers: seeds.split(","), logLevel: logLevel.ERROR, retry: { retries: 30, maxRetryTime: 2000 } });

async function write() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  for (let done = 0; done < count; done++) {
    await producer.send({ topic, messages: [{ key: String(done % 5), value: String(done) }] });
    console.log(done);
  }
  await producer.disconnect();
}

async function read() {
  const consumer = kafka.consumer({ groupId: `${topic}-node`, retry: { retries: 30 } });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await new Promise((resolve) => {
    let done = 0;
    consumer.run({
      eachMessage: async ({ message }) => {
        console.log(message.value.toString());
        if (++done >= count) resolve();
      },
    });
  });
  await consumer.disconnect();
}

(what === "write" ? write() : read()).catch((error) => {
  console.error(error);
  process.exit(1);
});
