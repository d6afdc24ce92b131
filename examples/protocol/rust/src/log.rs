//! Levels 1 and 2: store records once each, and read them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::batch::{self, Record};
use crate::brokers::{Brokers, Of, PATIENCE, answer_of, only};
use crate::failure::Failure;
use crate::v1;

const RECORD_SCHEMA: u32 = 1;
const FETCH_BYTES_MAX: u32 = 1 << 20;

pub fn now_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

/// Stores batches in one partition, each record once.
pub struct Producer {
    topic: String,
    topic_id: u64,
    partition: u32,
    of: Of,
    session: Option<v1::ProducerSession>,
}

impl Producer {
    pub async fn new(brokers: &mut Brokers, topic: &str, partition: u32) -> Result<Self, Failure> {
        let topic_id = brokers.describe(topic).await?.topic_id;
        let of = Of::Partition(topic.to_owned(), partition);
        Ok(Self { topic: topic.to_owned(), topic_id, partition, of, session: None })
    }

    /// Store the values as one batch. An error that says so leaves it unknown whether they are stored.
    pub async fn send(&mut self, brokers: &mut Brokers, values: &[Vec<u8>]) -> Result<(), Failure> {
        let payload = batch::encoded(values, now_us()).map_err(|error| Failure::final_(error.to_string()))?;
        let count = values.len() as u32;
        loop {
            let session = match self.session.take() {
                Some(session) => session,
                None => self.open(brokers).await?,
            };
            let is_new = session.sequence == 0;
            let next = v1::ProducerSession { sequence: session.sequence + u64::from(count), ..session.clone() };
            let request = self.request(session, payload.clone(), count);
            let sent = brokers.at_owner(&self.of, PATIENCE, async |mut client| {
                let response = answer_of(client.produce_once(request.clone()), Duration::ZERO).await?;
                let result = only(response.results)?;
                result.error.map_or(Ok(()), |error| Err(error.into()))
            });
            match sent.await {
                Err(failure) if failure.is("SEQUENCE_PASSED") => {}
                // the broker has forgotten the session: nothing is in doubt, so another one may send the batch
                Err(failure) if is_forgotten(&failure) && !failure.in_doubt && !is_new => continue,
                done => done?,
            }
            self.session = Some(next);
            return Ok(());
        }
    }

    async fn open(&self, brokers: &mut Brokers) -> Result<v1::ProducerSession, Failure> {
        let mut id = vec![0; 16];
        getrandom::fill(&mut id).map_err(|error| Failure::final_(error.to_string()))?;
        let partition = v1::TopicPartition { topic: self.topic.clone(), partition: self.partition };
        let request = v1::OpenProducerRequest { partitions: vec![partition], ..Default::default() };
        let opened = brokers.at_owner(&self.of, PATIENCE, async |mut client| {
            let opened = only(answer_of(client.open_producer(request.clone()), Duration::ZERO).await?.partitions)?;
            opened.error.map_or(Ok(opened.opened_slot), |error| Err(error.into()))
        });
        let opened_slot = opened.await.map_err(Failure::of_question)?;
        Ok(v1::ProducerSession { id, epoch: 0, sequence: 0, opened_slot })
    }

    fn request(&self, session: v1::ProducerSession, payload: Vec<u8>, count: u32) -> v1::ProduceRequest {
        let batch = v1::ProduceBatch {
            topic: self.topic.clone(),
            topic_id: self.topic_id,
            partition: self.partition,
            length: payload.len() as u32,
            crc: crc32c::crc32c(&payload),
            record_count: count,
            schema: RECORD_SCHEMA,
            producer: Some(session),
            ..Default::default()
        };
        let header = v1::ProduceHeader { acks: v1::Acks::Durable.into(), batches: vec![batch], number: 0 };
        v1::ProduceRequest { header: Some(header), payload }
    }
}

fn is_forgotten(failure: &Failure) -> bool {
    failure.is("UNKNOWN_PRODUCER") || failure.is("OUT_OF_ORDER_SEQUENCE")
}

/// A place in a partition, from which records are read.
#[derive(Clone)]
pub struct Place {
    pub topic: String,
    /// 0: the topic that has the name now.
    pub topic_id: u64,
    pub partition: u32,
    pub offset: u64,
}

impl Place {
    pub fn of(&self) -> Of {
        Of::Partition(self.topic.clone(), self.partition)
    }

    /// Return the records from here on that have not expired, and go behind them. It waits for up to `wait` if there
    /// are none.
    pub async fn read(
        &mut self,
        brokers: &mut Brokers,
        wait: Duration,
        patience: Duration,
    ) -> Result<Vec<Record>, Failure> {
        let partition = v1::FetchPartition {
            topic: self.topic.clone(),
            topic_id: self.topic_id,
            partition: self.partition,
            offset: self.offset,
            ..Default::default()
        };
        let request = v1::FetchRequest {
            partitions: vec![partition],
            max_bytes: FETCH_BYTES_MAX,
            max_wait_ms: wait.as_millis() as u32,
            ..Default::default()
        };
        let of = self.of();
        let fetched = brokers.at_owner(&of, patience, async |mut client| {
            records_of(answer_of(client.fetch_once(request.clone()), wait).await?)
        });
        let (records, next) = fetched.await.map_err(Failure::of_question)?;
        let begin = self.offset;
        self.offset = begin.max(next);
        let now_ms = now_us() as u64 / 1000;
        let is_wanted = |record: &Record| record.offset >= begin && record.expires_ms.is_none_or(|at| at > now_ms);
        Ok(records.into_iter().filter(is_wanted).collect())
    }
}

/// Return the records of an answer about one partition, and the offset to go on at; 0: it has no batch.
fn records_of(response: v1::FetchResponse) -> Result<(Vec<Record>, u64), Failure> {
    let partition = only(response.header.unwrap_or_default().partitions)?;
    if let Some(error) = partition.error {
        return Err(error.into());
    }
    let (mut records, mut next, mut rest) = (Vec::new(), partition.next_offset, response.payload.as_slice());
    for entry in partition.batches {
        let message;
        (message, rest) = rest
            .split_at_checked(entry.length as usize)
            .ok_or_else(|| Failure::damaged("the answer ends within a batch"))?;
        if crc32c::crc32c(message) != entry.crc {
            return Err(Failure::damaged(format!("the batch at {} is damaged", entry.base_offset)));
        }
        let batch = batch::decoded(message, entry.base_offset)
            .map_err(|error| Failure::final_(format!("the batch at {}: {error}", entry.base_offset)))?;
        if batch.len() != entry.record_count as usize {
            return Err(Failure::damaged(format!("the batch at {} has another number of records", entry.base_offset)));
        }
        next = next.max(entry.base_offset + u64::from(entry.record_count));
        records.extend(batch);
    }
    Ok((records, next))
}

/// Return the earliest offset of a partition, or the latest one.
pub async fn end_of(brokers: &mut Brokers, place: &Place, latest: bool) -> Result<u64, Failure> {
    let at = if latest { v1::offset_query::At::Latest(true) } else { v1::offset_query::At::Earliest(true) };
    let query =
        v1::OffsetQuery { topic: place.topic.clone(), partition: place.partition, at: Some(at), ..Default::default() };
    let request = v1::ListOffsetsRequest { queries: vec![query] };
    let of = place.of();
    let listed = brokers.at_owner(&of, PATIENCE, async |mut client| {
        let result = only(answer_of(client.list_offsets(request.clone()), Duration::ZERO).await?.results)?;
        result.error.map_or(Ok(result.offset), |error| Err(error.into()))
    });
    listed.await.map_err(Failure::of_question)
}
