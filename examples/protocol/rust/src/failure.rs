//! What a failed call means: the table under "Errors" of docs/protocol.md.

use std::fmt;
use std::time::Duration;

use prost::Message;
use tonic::{Code, Status};

use crate::v1;

const RETRIABLE: [&str; 7] = [
    "NOT_OWNER",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "TOPIC_BEING_DELETED",
    "RESOURCE_EXHAUSTED",
    "QUOTA_EXCEEDED",
    "STORE_FULL",
];

/// Why a call, or its part about one partition, failed.
#[derive(Debug, Clone, Default)]
pub struct Failure {
    /// The code of the broker; empty: the answer is from no broker.
    pub code: String,
    pub text: String,
    /// The same call may succeed later.
    pub retriable: bool,
    /// A batch of the call, or of the attempts before it, may be stored.
    pub in_doubt: bool,
    /// The peer did not answer: ask another one.
    pub no_answer: bool,
    /// The owner that the broker names; empty: it does not know it.
    pub owner: String,
    pub wait: Option<Duration>,
}

impl Failure {
    /// A peer that sent no answer, or none in time.
    pub fn no_answer(text: impl Into<String>) -> Self {
        Self { text: text.into(), retriable: true, in_doubt: true, no_answer: true, ..Self::default() }
    }

    /// An answer that was damaged on its way: ask for it again.
    pub fn damaged(text: impl Into<String>) -> Self {
        Self { text: text.into(), retriable: true, ..Self::default() }
    }

    pub fn final_(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// Leave nothing in doubt: the call stores nothing.
    pub fn of_question(self) -> Self {
        Self { in_doubt: false, ..self }
    }

    pub fn is(&self, code: &str) -> bool {
        self.code == code
    }
}

impl From<v1::Error> for Failure {
    fn from(error: v1::Error) -> Self {
        let exact = if error.exact_code.is_empty() { &error.code } else { &error.exact_code };
        let retriable = RETRIABLE.contains(&exact.as_str()) || RETRIABLE.contains(&error.code.as_str());
        Self {
            code: exact.clone(),
            text: error.message,
            retriable,
            in_doubt: retriable && !error.not_stored,
            no_answer: false,
            owner: error.owner,
            wait: (error.retry_after_ms > 0).then(|| Duration::from_millis(error.retry_after_ms.into())),
        }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let trailer = status.metadata().get_bin("ledgermq-error-bin");
        if let Some(error) = trailer.and_then(|value| v1::Error::decode(value.to_bytes().ok()?).ok()) {
            return error.into();
        }
        let text = format!("{:?}: {}", status.code(), status.message());
        match status.code() {
            // UNKNOWN and INTERNAL are what tonic makes of a stream that ended without a status
            Code::Unavailable
            | Code::Cancelled
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Unknown
            | Code::Internal => Self::no_answer(text),
            _ => Self::final_(text),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.code, self.text)?;
        if self.in_doubt { write!(out, "; whether the batch is stored is unknown") } else { Ok(()) }
    }
}

impl std::error::Error for Failure {}
