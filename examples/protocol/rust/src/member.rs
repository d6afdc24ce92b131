//! Level 3: a member of a group. Two loops share what the member holds: one sends heartbeats, the other reads.

use std::cell::RefCell;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::brokers::{Brokers, Of, PATIENCE, answer_of, only};
use crate::failure::Failure;
use crate::log::{Place, end_of};
use crate::v1::{self, GivenPartition, GroupStep};

const HEARTBEAT_WAIT: Duration = Duration::from_secs(1);
const READ_WAIT: Duration = Duration::from_millis(200);
/// Codes of a commit for a partition that is not the member's any more.
const NO_LONGER: [&str; 3] = ["STALE_ASSIGNMENT", "UNKNOWN_MEMBER", "UNKNOWN_TOPIC"];
const COMMIT_EVERY: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Holdings {
    /// What the member holds, and has not let go, read or not.
    held: Vec<GivenPartition>,
    /// What it may hold.
    assigned: Vec<GivenPartition>,
    /// The reading loop has let go all that the last answer takes away.
    is_applied: bool,
    has_ended: bool,
}

pub struct Member {
    group: String,
    of: Of,
    topic: String,
    id: String,
    holdings: RefCell<Holdings>,
    /// `is_applied` may have changed.
    has_changed: Notify,
}

struct Reading {
    given: GivenPartition,
    place: Place,
    committed: u64,
    counter: u64,
}

impl Member {
    pub fn new(group: &str, topic: &str) -> Result<Self, Failure> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|error| Failure::final_(error.to_string()))?;
        let id = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let of = Of::Group(group.to_owned());
        let (group, topic) = (group.to_owned(), topic.to_owned());
        Ok(Self { group, of, topic, id, holdings: RefCell::default(), has_changed: Notify::new() })
    }

    /// Print records until `ends` is set; then commit, and leave.
    pub async fn run(&self, address: &str, ends: Arc<AtomicBool>) -> Result<(), Failure> {
        let (mut for_heartbeats, mut for_reading) = (Brokers::new(address), Brokers::new(address));
        tokio::try_join!(self.send_heartbeats(&mut for_heartbeats), self.read(&mut for_reading, ends))?;
        Ok(())
    }

    async fn send_heartbeats(&self, brokers: &mut Brokers) -> Result<(), Failure> {
        let (mut step, mut seen_epoch) = (GroupStep::Join, 0);
        while !self.holdings.borrow().has_ended {
            match self.heartbeat(brokers, step, seen_epoch).await {
                Ok(answer) => {
                    (step, seen_epoch) = (GroupStep::Stay, answer.group_epoch);
                    let due = Duration::from_millis(answer.heartbeat_interval_ms.into());
                    self.take(answer.assigned);
                    let _ = timeout(due / 2, self.applied()).await; // then report what is let go
                }
                Err(failure) if failure.is("UNKNOWN_MEMBER") => {
                    (step, seen_epoch) = (GroupStep::Join, 0);
                    let mut holdings = self.holdings.borrow_mut();
                    holdings.held.clear();
                    holdings.assigned.clear();
                }
                Err(failure) => return Err(failure),
            }
        }
        match self.heartbeat(brokers, GroupStep::Leave, seen_epoch).await {
            Err(failure) if !failure.is("UNKNOWN_MEMBER") => Err(failure),
            _ => Ok(()),
        }
    }

    async fn heartbeat(
        &self,
        brokers: &mut Brokers,
        step: GroupStep,
        seen_epoch: u64,
    ) -> Result<v1::GroupHeartbeatResponse, Failure> {
        let subscription = v1::GroupSubscription { topics: vec![self.topic.clone()], ..Default::default() };
        let wait = if step == GroupStep::Stay { HEARTBEAT_WAIT } else { Duration::ZERO };
        let request = v1::GroupHeartbeatRequest {
            group: self.group.clone(),
            member_id: self.id.clone(),
            step: step.into(),
            owned: self.holdings.borrow().held.clone(),
            max_wait_ms: wait.as_millis() as u32,
            subscription: (step == GroupStep::Join).then_some(subscription),
            seen_epoch,
            ..Default::default()
        };
        let answered = brokers.at_owner(&self.of, PATIENCE, async |mut client| {
            answer_of(client.group_heartbeat(request.clone()), wait).await
        });
        answered.await.map_err(Failure::of_question)
    }

    fn take(&self, assigned: Vec<GivenPartition>) {
        let mut holdings = self.holdings.borrow_mut();
        for given in &assigned {
            if !holdings.held.contains(given) {
                holdings.held.push(given.clone());
            }
        }
        holdings.assigned = assigned;
        holdings.is_applied = false;
    }

    async fn applied(&self) {
        while !self.holdings.borrow().is_applied {
            self.has_changed.notified().await;
        }
    }

    async fn read(&self, brokers: &mut Brokers, ends: Arc<AtomicBool>) -> Result<(), Failure> {
        let mut readings: Vec<Reading> = Vec::new();
        let mut commit_at = Instant::now() + COMMIT_EVERY;
        while !ends.load(Ordering::Relaxed) {
            self.let_go(brokers, &mut readings).await?;
            self.begin(brokers, &mut readings).await?;
            if readings.is_empty() {
                sleep(READ_WAIT).await;
            }
            let wait = READ_WAIT / readings.len().max(1) as u32;
            for reading in &mut readings {
                self.print(brokers, reading, wait).await?;
            }
            if Instant::now() >= commit_at {
                self.commit(brokers, &mut readings).await?;
                commit_at = Instant::now() + COMMIT_EVERY;
            }
        }
        self.commit(brokers, &mut readings).await?;
        let mut holdings = self.holdings.borrow_mut();
        (holdings.has_ended, holdings.is_applied) = (true, true);
        self.has_changed.notify_one();
        Ok(())
    }

    /// Commit and let go what the member may not hold any longer; drop what it has lost.
    async fn let_go(&self, brokers: &mut Brokers, readings: &mut Vec<Reading>) -> Result<(), Failure> {
        let (assigned, taken) = {
            let holdings = self.holdings.borrow();
            readings.retain(|reading| holdings.held.contains(&reading.given));
            let taken = holdings.held.iter().filter(|given| !holdings.assigned.contains(given));
            (holdings.assigned.clone(), taken.cloned().collect::<Vec<_>>())
        };
        let mut gone: Vec<Reading> = readings.extract_if(.., |reading| taken.contains(&reading.given)).collect();
        self.commit(brokers, &mut gone).await?;
        let mut holdings = self.holdings.borrow_mut(); // there may be another answer by now
        holdings.held.retain(|given| !taken.contains(given));
        holdings.is_applied = holdings.assigned == assigned;
        self.has_changed.notify_one();
        Ok(())
    }

    /// Begin to read what is newly held, at the committed offset, or at the earliest one.
    async fn begin(&self, brokers: &mut Brokers, readings: &mut Vec<Reading>) -> Result<(), Failure> {
        let mut new = self.holdings.borrow().held.clone();
        new.retain(|given| readings.iter().all(|reading| reading.given != *given));
        for given in new {
            let partition = v1::TopicPartition { topic: given.topic.clone(), partition: given.partition };
            let request = v1::FetchCommittedRequest {
                group: self.group.clone(),
                partitions: vec![partition],
                ..Default::default()
            };
            let fetched = brokers.at_owner(&self.of, PATIENCE, async |mut client| {
                let fetched = client.fetch_committed(request.clone());
                let committed = only(answer_of(fetched, Duration::ZERO).await?.partitions)?;
                committed.error.map_or(Ok(committed.offset), |error| Err(error.into()))
            });
            let offset = fetched.await.map_err(Failure::of_question)?;
            let mut place = Place {
                topic: given.topic.clone(),
                topic_id: given.topic_id,
                partition: given.partition,
                offset: offset.unwrap_or(0),
            };
            if offset.is_none() {
                place.offset = end_of(brokers, &place, false).await?;
            }
            readings.push(Reading { given, committed: place.offset, place, counter: 0 });
        }
        Ok(())
    }

    async fn print(&self, brokers: &mut Brokers, reading: &mut Reading, wait: Duration) -> Result<(), Failure> {
        let records = match reading.place.read(brokers, wait, Duration::ZERO).await {
            Ok(records) => records,
            Err(failure) if failure.is("OFFSET_OUT_OF_RANGE") => {
                let earliest = end_of(brokers, &reading.place, false).await?;
                let latest = end_of(brokers, &reading.place, true).await?;
                reading.place.offset = reading.place.offset.clamp(earliest, latest);
                return Ok(());
            }
            Err(failure) if failure.retriable || failure.is("UNKNOWN_TOPIC") => {
                sleep(failure.wait.unwrap_or(READ_WAIT)).await;
                return Ok(());
            }
            Err(failure) => return Err(failure),
        };
        if !self.holdings.borrow().held.contains(&reading.given) {
            return Ok(()); // lost while the answer was on its way
        }
        let mut out = std::io::stdout().lock();
        for record in records {
            let value = record.value.unwrap_or_default();
            let printed =
                writeln!(out, "{} {} {}", reading.given.partition, record.offset, String::from_utf8_lossy(&value));
            printed.map_err(|error| Failure::final_(error.to_string()))?;
        }
        out.flush().map_err(|error| Failure::final_(error.to_string()))
    }

    /// Commit what was printed. A partition that is the member's no longer is let go.
    async fn commit(&self, brokers: &mut Brokers, readings: &mut [Reading]) -> Result<(), Failure> {
        for reading in readings.iter_mut().filter(|reading| reading.place.offset != reading.committed) {
            reading.counter += 1;
            let commit = v1::OffsetCommit {
                topic: reading.given.topic.clone(),
                topic_id: reading.given.topic_id,
                partition: reading.given.partition,
                epoch: reading.given.epoch,
                counter: reading.counter,
                offset: reading.place.offset,
                metadata: String::new(),
            };
            let request = v1::CommitOffsetsRequest {
                group: self.group.clone(),
                member_id: self.id.clone(),
                commits: vec![commit],
                ..Default::default()
            };
            let committed = brokers.at_owner(&self.of, PATIENCE, async |mut client| {
                let result = only(answer_of(client.commit_offsets(request.clone()), Duration::ZERO).await?.results)?;
                result.error.map_or(Ok(()), |error| Err(error.into()))
            });
            match committed.await {
                Ok(()) => reading.committed = reading.place.offset,
                Err(failure) if NO_LONGER.iter().any(|code| failure.is(code)) => {
                    self.holdings.borrow_mut().held.retain(|given| *given != reading.given);
                }
                Err(failure) => return Err(failure.of_question()),
            }
        }
        Ok(())
    }
}
