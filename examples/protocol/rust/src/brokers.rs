//! Connections to the brokers, and who owns what.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use crate::failure::Failure;
use crate::v1;
use crate::v1::broker_client::BrokerClient;

pub type Client = BrokerClient<Channel>;

const MESSAGE_BYTES_MAX: usize = (33 << 20) + 64;
const ANSWER_TIME: Duration = Duration::from_secs(5);
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a call is repeated before the caller hears that it failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What a call is about: its owner has to answer.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Of {
    Partition(String, u32),
    Group(String),
}

pub struct Brokers {
    addresses: BTreeSet<String>,
    turn: usize,
    clients: HashMap<String, Client>,
    owners: HashMap<Of, String>,
}

impl Brokers {
    /// Begin with the address of any broker; it tells all others.
    pub fn new(address: &str) -> Self {
        Self {
            addresses: BTreeSet::from([address.to_owned()]),
            turn: 0,
            clients: HashMap::new(),
            owners: HashMap::new(),
        }
    }

    /// Make a call about something at its owner, and repeat it until it succeeds, `patience` is over, or repeating is
    /// of no use. `Duration::ZERO` makes one attempt.
    ///
    /// The failure's `in_doubt` is about all attempts together.
    pub async fn at_owner<T>(
        &mut self,
        of: &Of,
        patience: Duration,
        attempt: impl AsyncFn(Client) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let end = Instant::now() + patience;
        let (mut pause, mut redirects, mut in_doubt) = (PAUSE_FIRST, 0, false);
        loop {
            let mut failure = match self.once(of, &attempt).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            // what a redirect refuses is not stored only if it says so; the same holds for all attempts before it
            in_doubt |= failure.in_doubt;
            if !failure.retriable || Instant::now() >= end {
                failure.in_doubt = in_doubt;
                return Err(failure);
            }
            redirects = if failure.owner.is_empty() { 0 } else { redirects + 1 };
            if (1..=3).contains(&redirects) {
                continue; // more in a row: two brokers name each other, so pause
            }
            sleep(failure.wait.unwrap_or(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn once<T>(&mut self, of: &Of, attempt: &impl AsyncFn(Client) -> Result<T, Failure>) -> Result<T, Failure> {
        let address = match self.owners.get(of) {
            Some(owner) => owner.clone(),
            None => self.find_owner(of).await?,
        };
        let answer = attempt(self.client(&address)?).await;
        match &answer {
            Ok(_) => {
                self.owners.insert(of.clone(), address);
            }
            Err(failure) if failure.no_answer => {
                self.owners.remove(of);
                self.clients.remove(&address);
            }
            Err(failure) if failure.is("NOT_OWNER") && failure.owner.is_empty() => {
                self.owners.remove(of);
            }
            Err(failure) if failure.is("NOT_OWNER") => {
                self.owners.insert(of.clone(), failure.owner.clone());
            }
            Err(_) => {}
        }
        answer
    }

    async fn find_owner(&mut self, of: &Of) -> Result<String, Failure> {
        match of {
            Of::Group(_) => {
                self.learn().await?;
                Ok(self.any()) // every broker names the coordinator
            }
            Of::Partition(topic, partition) => {
                let info = self.describe_once(topic).await?;
                let found = info.partitions.get(*partition as usize).map(|partition| partition.owner.clone());
                match found {
                    None => Err(Failure::final_(format!("{topic} has no partition {partition}"))),
                    Some(owner) if owner.is_empty() => {
                        Err(Failure { retriable: true, ..Failure::final_("no broker owns the partition") })
                    }
                    Some(owner) => Ok(owner),
                }
            }
        }
    }

    /// Return the topic as some broker knows it now.
    pub async fn describe(&mut self, topic: &str) -> Result<v1::TopicInfo, Failure> {
        let end = Instant::now() + PATIENCE;
        let mut pause = PAUSE_FIRST;
        loop {
            match self.describe_once(topic).await {
                Err(failure) if failure.retriable && Instant::now() < end => sleep(failure.wait.unwrap_or(pause)).await,
                done => return done,
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn describe_once(&mut self, topic: &str) -> Result<v1::TopicInfo, Failure> {
        let mut client = self.learn().await?;
        let request = v1::DescribeTopicsRequest { topics: vec![topic.to_owned()], ..Default::default() };
        let described =
            answer_of(client.describe_topics(request), Duration::ZERO).await.map_err(Failure::of_question)?;
        let info = described.topics.into_iter().next().ok_or_else(|| Failure::final_("no topic in the answer"))?;
        match info.error.clone() {
            Some(error) => Err(Failure::from(error).of_question()),
            None => Ok(info),
        }
    }

    /// Learn the addresses of all brokers from one of them, and return this one.
    async fn learn(&mut self) -> Result<Client, Failure> {
        let address = self.any();
        let mut client = self.client(&address)?;
        let asked = answer_of(client.describe_cluster(v1::DescribeClusterRequest {}), Duration::ZERO).await;
        let brokers = asked.map_err(Failure::of_question)?.brokers.into_iter();
        self.addresses.extend(brokers.filter(|broker| broker.alive).map(|broker| broker.address));
        Ok(client)
    }

    /// Return each known broker by turns.
    fn any(&mut self) -> String {
        self.turn += 1;
        self.addresses.iter().nth(self.turn % self.addresses.len()).expect("the first address stays").clone()
    }

    fn client(&mut self, address: &str) -> Result<Client, Failure> {
        if let Some(client) = self.clients.get(address) {
            return Ok(client.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| Failure::final_(format!("{address} is no address: {error}")))?
            .connect_timeout(Duration::from_secs(2))
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(5))
            .keep_alive_while_idle(true);
        let client = BrokerClient::new(endpoint.connect_lazy())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        self.clients.insert(address.to_owned(), client.clone());
        Ok(client)
    }
}

/// Wait for an answer that the broker may hold for `held`.
pub async fn answer_of<T>(
    call: impl Future<Output = Result<Response<T>, Status>>,
    held: Duration,
) -> Result<T, Failure> {
    match timeout(ANSWER_TIME + held, call).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Failure::no_answer("no answer in time")),
    }
}

/// Return the only entry of an answer about one partition.
pub fn only<T>(entries: Vec<T>) -> Result<T, Failure> {
    let count = entries.len();
    let mut entries = entries.into_iter();
    match (entries.next(), count) {
        (Some(entry), 1) => Ok(entry),
        _ => Err(Failure::final_(format!("{count} entries in an answer about one partition"))),
    }
}
