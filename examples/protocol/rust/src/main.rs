//! A client of LedgerMQ in Rust, levels 1 to 3, made from docs/protocol.md. It has the tasks of `ledgermq conformance`.
//! It has no TLS; tonic's feature `tls-ring` brings it.

mod batch;
mod brokers;
mod failure;
mod log;
mod member;
#[allow(dead_code, clippy::all)]
mod v1 {
    tonic::include_proto!("ledgermq.v1");
}

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use brokers::{Brokers, PATIENCE};
use log::{Place, Producer};
use member::Member;

const BATCH_RECORDS: usize = 10;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words.iter().map(String::as_str).collect::<Vec<_>>()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(words: &[&str]) -> Result<(), Box<dyn Error>> {
    match words {
        ["produce", address, topic, partition, first, count] => {
            produce(address, topic, partition.parse()?, first.parse()?, count.parse()?).await
        }
        ["fetch", address, topic, partition, offset, count] => {
            fetch(address, topic, partition.parse()?, offset.parse()?, count.parse()?).await
        }
        ["member", address, topic, group] => {
            let ends = Arc::new(AtomicBool::new(false));
            let sets = ends.clone();
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                sets.store(true, Ordering::Relaxed);
            });
            Ok(Member::new(group, topic)?.run(address, ends).await?)
        }
        _ => Err("client produce ADDRESS TOPIC PARTITION FIRST COUNT | fetch ADDRESS TOPIC PARTITION OFFSET COUNT | \
                  member ADDRESS TOPIC GROUP"
            .into()),
    }
}

async fn produce(address: &str, topic: &str, partition: u32, first: u64, count: u64) -> Result<(), Box<dyn Error>> {
    let mut brokers = Brokers::new(address);
    let mut producer = Producer::new(&mut brokers, topic, partition).await?;
    let numbers: Vec<Vec<u8>> = (first..first + count).map(|number| number.to_string().into_bytes()).collect();
    for values in numbers.chunks(BATCH_RECORDS) {
        producer.send(&mut brokers, values).await?;
    }
    Ok(())
}

async fn fetch(address: &str, topic: &str, partition: u32, offset: u64, count: usize) -> Result<(), Box<dyn Error>> {
    let mut brokers = Brokers::new(address);
    let mut place = Place { topic: topic.to_owned(), topic_id: 0, partition, offset };
    let mut printed = 0;
    let mut out = std::io::stdout().lock();
    while printed < count {
        let records = place.read(&mut brokers, Duration::from_secs(1), PATIENCE).await?;
        for record in records.into_iter().take(count - printed) {
            printed += 1;
            writeln!(out, "{} {}", record.offset, String::from_utf8_lossy(&record.value.unwrap_or_default()))?;
        }
    }
    Ok(())
}
