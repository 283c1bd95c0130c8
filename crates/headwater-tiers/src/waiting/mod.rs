//! Who gets room, and when: the accounts of all spaces, and one queue of those who wait for any of them.
//!
//! | file | what |
//! |---|---|
//! | `account.rs` | what one space has and has given away |
//! | `request.rs` | what the book is asked and answers |
//! | `book.rs` | all accounts and the queue: a pure state machine, no lock, no clock |
//! | `gate.rs` | the lock and the sleeping around it |
//! | `current.rs` | the task that a thread works for, to which all of its waits are known |
//! | `wait.rs` | how long a caller is willing to wait, and how it is called off |

mod account;
mod book;
mod current;
mod gate;
#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod model_tests;
mod request;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod wait;

pub(crate) use account::{Account, Charge};
pub(crate) use book::Book;
pub(crate) use current::work_for;
pub(crate) use gate::{Gate, WaitRefused};
pub(crate) use request::{Ask, Candidate, Ceiling, Refused};
pub use wait::{CancelToken, Wait};
pub(crate) use wait::{Cancellable, WaitObserver};
