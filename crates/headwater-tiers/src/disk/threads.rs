//! Transfers by threads that read and write at offsets.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::file::SpillFile;
use super::io::{Alignment, Completion, Direction, DiskIo, IoDescription, IoKind, IoQueue, Transfer};

/// A file and the threads that serve it.
#[derive(Debug)]
pub(super) struct ThreadsIo {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    file: SpillFile,
    jobs: Mutex<Jobs>,
    work: Condvar,
}

#[derive(Debug, Default)]
struct Jobs {
    waiting: VecDeque<(Transfer, Arc<Done>)>,
    is_closing: bool,
}

/// Where the ends of one queue's transfers arrive.
#[derive(Debug, Default)]
struct Done {
    ended: Mutex<VecDeque<Completion>>,
    arrived: Condvar,
}

impl ThreadsIo {
    pub(super) fn new(file: SpillFile, threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared { file, jobs: Mutex::default(), work: Condvar::new() });
        let mut io = Self { shared, threads: Vec::new() };
        for _ in 0..threads.max(1) {
            let shared = io.shared.clone();
            let thread =
                std::thread::Builder::new().name("headwater-disk".into()).spawn(move || shared.serve())?;
            io.threads.push(thread);
        }
        Ok(io)
    }
}

impl Shared {
    fn serve(&self) {
        loop {
            let (transfer, done) = {
                let mut jobs = self.jobs.lock();
                loop {
                    if let Some(job) = jobs.waiting.pop_front() {
                        break job;
                    }
                    if jobs.is_closing {
                        return;
                    }
                    self.work.wait(&mut jobs);
                }
            };
            let result = self.run(&transfer);
            done.ended.lock().push_back(Completion { tag: transfer.tag, result });
            done.arrived.notify_one();
        }
    }

    fn run(&self, transfer: &Transfer) -> io::Result<usize> {
        let Transfer { memory, bytes, offset, .. } = *transfer;
        match transfer.direction {
            Direction::Read => {
                // SAFETY: whoever pushed the transfer promised that the memory is valid and nobody else's until it ends.
                let memory = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), bytes) };
                self.file.file().read_at(memory, offset)
            }
            Direction::Write => {
                // SAFETY: as above, and that nobody writes it.
                let memory = unsafe { std::slice::from_raw_parts(memory.as_ptr(), bytes) };
                self.file.file().write_at(memory, offset)
            }
        }
    }
}

impl DiskIo for ThreadsIo {
    fn describe(&self) -> IoDescription {
        let file = &self.shared.file;
        let mut facts = IoDescription::new(IoKind::Threads, self.threads.len(), file.alignment);
        (facts.is_direct, facts.is_anonymous) = (file.is_direct, file.is_anonymous);
        facts.is_preallocated = file.is_preallocated();
        facts
    }

    fn alignment(&self) -> Alignment {
        self.shared.file.alignment
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.shared.file.free_bytes()
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.shared.file.allocate(offset, bytes)
    }

    fn release(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.shared.file.release(offset, bytes)
    }

    fn queue(&self) -> io::Result<Box<dyn IoQueue + '_>> {
        Ok(Box::new(ThreadsQueue { io: self, done: Arc::default(), in_flight: 0 }))
    }
}

impl Drop for ThreadsIo {
    fn drop(&mut self) {
        self.shared.jobs.lock().is_closing = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread only ends by returning; there is nobody left to tell if not.
            let _ = thread.join();
        }
    }
}

struct ThreadsQueue<'a> {
    io: &'a ThreadsIo,
    done: Arc<Done>,
    in_flight: usize,
}

impl IoQueue for ThreadsQueue<'_> {
    fn depth(&self) -> usize {
        // One more each, so that a thread that ends finds the next transfer waiting.
        self.io.threads.len() * 2
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    unsafe fn push(&mut self, transfer: Transfer) -> io::Result<()> {
        self.io.shared.jobs.lock().waiting.push_back((transfer, self.done.clone()));
        self.io.shared.work.notify_one();
        self.in_flight += 1;
        Ok(())
    }

    fn pop(&mut self) -> Option<Completion> {
        if self.in_flight == 0 {
            return None;
        }
        let mut ended = self.done.ended.lock();
        loop {
            if let Some(completion) = ended.pop_front() {
                self.in_flight -= 1;
                return Some(completion);
            }
            self.done.arrived.wait(&mut ended);
        }
    }
}

impl Drop for ThreadsQueue<'_> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}
