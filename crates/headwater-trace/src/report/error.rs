//! Why a page cannot be made: data that contradicts itself would make a picture that lies.

/// Data that no page can be made of. `policy` and `index` say where it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are said in the words above and in the messages")]
pub enum ReportError {
    /// A number beyond 2^53, which JavaScript cannot hold exactly.
    #[error("{what} {value} is beyond 2^53 and cannot be shown exactly")]
    TooLarge { what: &'static str, value: u64 },
    /// More events than 32 bits can number.
    #[error("{events} events are more than a page can hold (2^32 - 2)")]
    TooManyEvents { events: usize },
    /// An event index that the trace does not have.
    #[error("policy {policy}: {what} {index} names event {event} of {events}")]
    UnknownEvent { policy: String, what: &'static str, index: usize, event: u32, events: usize },
    /// Samples or failed requests that are not in the order of events.
    #[error("policy {policy}: {what} {index} is not after the one before it")]
    OutOfOrder { policy: String, what: &'static str, index: usize },
    /// A block or span that ends before it begins.
    #[error("policy {policy}: {what} {index} ends before it begins")]
    EndsBeforeItBegins { policy: String, what: &'static str, index: usize },
    /// A stream, label or frame that the tables do not have.
    #[error("{what} {id} is not in the table of {known}")]
    UnknownName { what: &'static str, id: u64, known: usize },
    /// Writing failed.
    #[error("cannot write the report: {0}")]
    Write(#[from] std::io::Error),
}
