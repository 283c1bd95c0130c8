//! Messages from many threads to one, without a lock: blocks that others gave back.
//!
//! A ring of cells, each with a turn number (Vyukov's bounded queue). A sender reserves a run of cells by moving the tail
//! with one exchange, fills them, and opens each by setting its turn; the receiver takes cells from the head in order for as
//! long as they are open, and sets their turn one lap ahead. A batch costs one exchange however long it is. A full ring
//! refuses the batch whole, and the sender takes another way: nothing here waits, except the receiver that closes.
//!
//! An inbox is closed when its thread ends. The closed bit is part of the tail, so no batch can be reserved after it was
//! set; what was reserved before is waited for, and taken.

use super::sync::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, pause};

/// Set in the tail where the inbox is closed. The tail counts cells in steps of [`STEP`].
const CLOSED: usize = 1;
const STEP: usize = 2;

/// One message: what it is about, and a number about it.
#[derive(Debug)]
pub(crate) struct Message<T> {
    pub(crate) about: *const T,
    pub(crate) note: u64,
}

impl<T> Clone for Message<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Message<T> {}

#[derive(Debug)]
struct Cell<T> {
    /// `n` where the cell is free for message `n`, `n + 1` where it holds it.
    turn: AtomicUsize,
    about: AtomicPtr<T>,
    note: AtomicU64,
}

/// A bounded queue of messages.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    cells: Box<[Cell<T>]>,
    /// The number of the next message, times [`STEP`], and [`CLOSED`].
    tail: AtomicUsize,
    /// The number of the next message to take. Only the receiver writes it.
    head: AtomicUsize,
}

impl<T> Inbox<T> {
    /// An inbox for `capacity` messages, a power of two. It starts closed.
    pub(crate) fn new(capacity: usize) -> Self {
        debug_assert!(capacity.is_power_of_two());
        let cell = |turn| Cell {
            turn: AtomicUsize::new(turn),
            about: AtomicPtr::new(std::ptr::null_mut()),
            note: AtomicU64::new(0),
        };
        Self {
            cells: (0..capacity).map(cell).collect(),
            tail: AtomicUsize::new(CLOSED),
            head: AtomicUsize::new(0),
        }
    }

    /// Sends all messages, or none where the inbox is full or closed. From any thread.
    pub(crate) fn send(&self, messages: &[Message<T>]) -> bool {
        let Some(last) = messages.len().checked_sub(1) else { return true };
        if last >= self.cells.len() {
            return false;
        }
        let mut tail = self.tail.load(Ordering::Relaxed);
        let first = loop {
            if tail & CLOSED != 0 {
                return false;
            }
            let first = tail / STEP;
            // The receiver frees cells in order, so where the last is free all are.
            let turn = self.cell(first.wrapping_add(last)).turn.load(Ordering::Acquire);
            if turn != first.wrapping_add(last) {
                let now = self.tail.load(Ordering::Relaxed);
                if now == tail {
                    return false;
                }
                tail = now;
                continue;
            }
            let next = tail.wrapping_add(messages.len() * STEP);
            match self.tail.compare_exchange_weak(tail, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break first,
                Err(now) => tail = now,
            }
        };
        for (offset, message) in messages.iter().enumerate() {
            let number = first.wrapping_add(offset);
            let cell = self.cell(number);
            cell.about.store(message.about.cast_mut(), Ordering::Relaxed);
            cell.note.store(message.note, Ordering::Relaxed);
            // Release: whoever takes the message sees what the sender did to the thing it is about.
            cell.turn.store(number.wrapping_add(1), Ordering::Release);
        }
        true
    }

    /// Takes the messages that have arrived. For one thread at a time.
    pub(crate) fn take(&self, each: impl FnMut(Message<T>)) {
        self.take_up_to(usize::MAX, each);
    }

    /// The same, but no more than `most`.
    pub(crate) fn take_up_to(&self, most: usize, mut each: impl FnMut(Message<T>)) {
        let mut number = self.head.load(Ordering::Relaxed);
        for _ in 0..most {
            let cell = self.cell(number);
            if cell.turn.load(Ordering::Acquire) != number.wrapping_add(1) {
                break;
            }
            let about = cell.about.load(Ordering::Relaxed).cast_const();
            let note = cell.note.load(Ordering::Relaxed);
            cell.turn.store(number.wrapping_add(self.cells.len()), Ordering::Release);
            number = number.wrapping_add(1);
            self.head.store(number, Ordering::Relaxed);
            each(Message { about, note });
        }
    }

    /// Whether a message is waiting to be taken. A hint: one may arrive at any moment.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        self.cell(head).turn.load(Ordering::Relaxed) == head.wrapping_add(1)
    }

    /// Lets messages in.
    pub(crate) fn open(&self) {
        self.tail.fetch_and(!CLOSED, Ordering::AcqRel);
    }

    /// Lets no more messages in, and takes those that are under way. For one thread at a time.
    pub(crate) fn close(&self, mut each: impl FnMut(Message<T>)) {
        let end = (self.tail.fetch_or(CLOSED, Ordering::AcqRel) & !CLOSED) / STEP;
        loop {
            self.take(&mut each);
            if self.head.load(Ordering::Relaxed) == end {
                break;
            }
            // A sender has reserved a cell and is about to fill it.
            pause();
        }
    }

    #[inline(always)]
    fn cell(&self, number: usize) -> &Cell<T> {
        &self.cells[number & (self.cells.len() - 1)]
    }
}

#[cfg(test)]
#[cfg(not(loom))] // under the model checker, atomics are good for models only
mod tests {
    use super::*;

    fn message(thing: &u32, note: u64) -> Message<u32> {
        Message { about: thing, note }
    }

    fn notes(inbox: &Inbox<u32>) -> Vec<u64> {
        let mut notes = Vec::new();
        inbox.take(|message| notes.push(message.note));
        notes
    }

    #[test]
    fn messages_arrive_in_order_and_once_over_many_laps() {
        let (inbox, thing) = (Inbox::new(4), 1);
        inbox.open();
        for lap in 0..10 {
            assert!(inbox.send(&[message(&thing, lap), message(&thing, lap + 100)]));
            assert!(inbox.send(&[message(&thing, lap + 200)]));
            assert!(inbox.has_mail());
            assert_eq!(notes(&inbox), [lap, lap + 100, lap + 200]);
            assert!(!inbox.has_mail());
        }
    }

    #[test]
    fn a_batch_that_does_not_fit_is_refused_whole() {
        let (inbox, thing) = (Inbox::new(4), 1);
        inbox.open();
        assert!(!inbox.send(&[message(&thing, 0); 5]));
        assert!(inbox.send(&[message(&thing, 1); 3]));
        assert!(!inbox.send(&[message(&thing, 2); 2]));
        assert!(inbox.send(&[message(&thing, 3)]));
        assert_eq!(notes(&inbox), [1, 1, 1, 3]);
    }

    #[test]
    fn a_closed_inbox_takes_nothing_and_can_be_opened_again() {
        let (inbox, thing) = (Inbox::new(4), 1);
        assert!(!inbox.send(&[message(&thing, 0)]));
        inbox.open();
        assert!(inbox.send(&[message(&thing, 1)]));
        let mut last = Vec::new();
        inbox.close(|message| last.push(message.note));
        assert_eq!(last, [1]);
        assert!(!inbox.send(&[message(&thing, 2)]));
        inbox.open();
        assert!(inbox.send(&[message(&thing, 3)]));
        assert_eq!(notes(&inbox), [3]);
    }

    #[test]
    fn many_senders_lose_and_double_nothing() {
        const EACH: u64 = 2_000;
        let (inbox, thing) = (Inbox::new(64), 1);
        inbox.open();
        let mut seen = vec![0_u32; 4 * EACH as usize];
        std::thread::scope(|scope| {
            for sender in 0..4 {
                let (inbox, thing) = (&inbox, &thing);
                scope.spawn(move || {
                    for number in 0..EACH {
                        while !inbox.send(&[message(thing, sender * EACH + number)]) {
                            pause();
                        }
                    }
                });
            }
            let mut count = 0;
            while count < 4 * EACH {
                inbox.take(|message| {
                    seen[message.note as usize] += 1;
                    count += 1;
                });
                pause();
            }
        });
        assert!(seen.iter().all(|times| *times == 1));
    }
}
