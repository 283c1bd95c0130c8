//! Which reservation a stream or a thread draws from.
//!
//! By stream: one map for all threads, read-mostly. By thread: a list in the thread's own storage, so no lock; a list, not
//! one slot, because one thread may draw from several allocators (one a device).
//!
//! The per-thread default stream is one value that names another stream in every thread, so in the map it is told
//! apart by the thread.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

use headwater_driver::Stream;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::error::TierError;
use crate::reservation::{OverPolicy, Promise};

/// Whose reservation serves an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tracking {
    /// That of the request's stream.
    #[default]
    PerStream,
    /// That of the calling thread; for programs that use per-thread default streams.
    PerThread,
}

/// What an attached reservation is: where to draw from, and how far.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) promise: Arc<Promise>,
    pub(super) over: OverPolicy,
}

type StreamKey = (Stream, Option<ThreadId>);

#[derive(Debug)]
pub(super) struct Tracker {
    /// Tells this tracker from all others in a thread's list.
    id: u64,
    tracking: Tracking,
    by_stream: RwLock<FxHashMap<StreamKey, Source>>,
}

thread_local! {
    static OF_THIS_THREAD: RefCell<Vec<(u64, Source)>> = const { RefCell::new(Vec::new()) };
}

fn key_of(stream: Stream) -> StreamKey {
    (stream, stream.is_per_thread_default().then(|| std::thread::current().id()))
}

impl Tracker {
    pub(super) fn new(tracking: Tracking) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, tracking, by_stream: RwLock::default() })
    }

    /// What a request in `stream`, made by this thread, draws from.
    pub(super) fn source(&self, stream: Stream) -> Option<Source> {
        match self.tracking {
            Tracking::PerStream => self.by_stream.read().get(&key_of(stream)).cloned(),
            Tracking::PerThread => OF_THIS_THREAD.with_borrow(|list| {
                list.iter().find(|(id, _)| *id == self.id).map(|(_, source)| source.clone())
            }),
        }
    }

    pub(super) fn attach(self: &Arc<Self>, stream: Stream, source: Source) -> Result<Attached, TierError> {
        let key = match self.tracking {
            Tracking::PerStream => {
                let mut map = self.by_stream.write();
                let key = key_of(stream);
                if map.contains_key(&key) {
                    return Err(TierError::AlreadyAttached { stream: Some(stream) });
                }
                map.insert(key, source);
                Some(key)
            }
            Tracking::PerThread => OF_THIS_THREAD.with_borrow_mut(|list| {
                if list.iter().any(|(id, _)| *id == self.id) {
                    return Err(TierError::AlreadyAttached { stream: None });
                }
                list.push((self.id, source));
                Ok(None)
            })?,
        };
        Ok(Attached { tracker: self.clone(), key, _stays_in_its_thread: PhantomData })
    }
}

/// A reservation serves a stream or a thread for as long as this lives. It is dropped in the thread that made it.
#[derive(Debug)]
#[must_use = "dropping it detaches the reservation"]
pub struct Attached {
    tracker: Arc<Tracker>,
    key: Option<StreamKey>,
    /// Another thread's list cannot be reached, so this value must not get there.
    _stays_in_its_thread: PhantomData<*const ()>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        match self.key {
            Some(key) => {
                self.tracker.by_stream.write().remove(&key);
            }
            None => {
                // At the end of the thread its list may be gone already, and the entry with it.
                let _ = OF_THIS_THREAD.try_with(|list| {
                    list.borrow_mut().retain(|(id, _)| *id != self.tracker.id);
                });
            }
        }
    }
}
