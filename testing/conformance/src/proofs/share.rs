//! Two processes use one block, and the death of one leaves the other fine.
//!
//! The *owner* fills a block of its own by a kernel, exports it and sends it over a socket. The *guest*, another process, maps it,
//! checks every word by a kernel, fills it with another word, and says how many words were wrong. The owner then checks what the
//! guest wrote. Guests are started by the caller, who can kill one that [`stays`](Manners::Stays): it has the block mapped at
//! that moment, and the owner goes on.
//!
//! On the simulated device the guest is a thread with a second view of the machine: memory of a simulated machine cannot leave its
//! process.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use headwater::sharing::{self, ExportedBlock, ImportedBlock, Neighbours};
use headwater::{Allocator, Block, DeviceVec, Request};
use headwater_driver::{Call, DeviceId, DevicePtr, Driver, StreamOptions};

use super::{Stage, failed, read};
use crate::case::Failure;
use crate::kernels::TestKernels;

const MIB: u64 = 1 << 20;
/// Not a multiple of a page: what is beyond the block's end is the block's own as well.
const BYTES: u64 = 200 * MIB + 4096;
const WORDS: u64 = BYTES / 4;
const FROM_OWNER: u32 = 0x0_FACADE;
const FROM_GUEST: u32 = 0x0_BADCAB;

/// What a guest does when it has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    /// Unmaps the block and ends.
    Leaves,
    /// Waits, with the block mapped, until the socket closes or it is killed.
    Stays,
}

/// What was done and found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ShareReport {
    /// Guests that used the block.
    pub guests: u64,
    /// Handles behind the block.
    pub handles: u64,
    /// Host time of one export call, one import call, on average.
    pub export_us: f64,
    /// Words checked by both sides.
    pub words_checked: u64,
    /// Words that were not what they had to be, on either side.
    pub words_wrong: u64,
}

/// The owner's part.
pub struct Owner {
    stage: Stage,
    ptr: DevicePtr,
    exported: Option<ExportedBlock>,
    report: ShareReport,
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner").field("ptr", &self.ptr).field("report", &self.report).finish_non_exhaustive()
    }
}

impl Owner {
    /// Makes the block and exports it.
    ///
    /// # Errors
    /// What did not work.
    pub fn new(driver: &Arc<dyn Driver>, device: DeviceId) -> Result<Self, Failure> {
        let stage = Stage::new(driver, device, 1)?;
        let request = Request::new(BYTES, stage.streams[0]);
        let ptr = stage.allocator.allocate_shareable(request).map_err(failed)?;
        let before = driver.call_counts().of(Call::HandleExport);
        let began = Instant::now();
        let exported = stage.allocator.export(ptr, Neighbours::Refused).map_err(failed)?;
        let took_us = began.elapsed().as_secs_f64() * 1e6;
        let handles = driver.call_counts().of(Call::HandleExport) - before;
        let report =
            ShareReport { handles, export_us: took_us / handles.max(1) as f64, ..ShareReport::default() };
        Ok(Self { stage, ptr, exported: Some(exported), report })
    }

    /// Lends the block to the guest at the other end of `socket`, and checks what it did.
    ///
    /// # Errors
    /// What did not work, the guest's own words where it refused.
    pub fn lend(&mut self, mut socket: &UnixStream) -> Result<(), Failure> {
        let (stage, stream) = (&self.stage, self.stage.streams[0]);
        // SAFETY: the block is live; nobody else uses it until it was waited for and sent.
        unsafe { stage.kernels.fill(self.ptr, WORDS, FROM_OWNER, stream) }.map_err(failed)?;
        stage.wait(stream)?;
        let Some(exported) = &self.exported else { return Err(Failure::new("the export has ended")) };
        sharing::send(socket, exported).map_err(failed)?;
        let mut answer = [0; 16];
        socket.read_exact(&mut answer).map_err(failed)?;
        let [ok, wrong] =
            [&answer[..8], &answer[8..]].map(|bytes| bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b)));
        if ok != 1 {
            let mut why = String::new();
            // Bounded: the length came with the answer.
            socket.take(wrong.min(4096)).read_to_string(&mut why).map_err(failed)?;
            return Err(Failure::new(format!("the guest: {why}")));
        }
        self.report.guests += 1;
        self.report.words_checked += 2 * WORDS;
        self.report.words_wrong += wrong + stage.wrong_words(self.ptr, WORDS, FROM_GUEST, stream)?;
        Ok(())
    }

    /// Ends the export and goes on as if nothing had been: the block is given back, its memory used again.
    ///
    /// # Errors
    /// What did not work.
    pub fn finish(mut self) -> Result<ShareReport, Failure> {
        let (stage, stream) = (&self.stage, self.stage.streams[0]);
        self.exported = None;
        // SAFETY: all guests have answered, or are dead, and this process has waited for its own work.
        unsafe { stage.allocator.give_back(self.ptr) }.map_err(failed)?;
        let again = Block::allocate(stage.shared(), Request::new(BYTES, stream)).map_err(failed)?;
        // SAFETY: the block is live and used in this stream alone.
        unsafe { stage.kernels.fill(again.ptr(), WORDS, 7, stream) }.map_err(failed)?;
        self.report.words_wrong += stage.wrong_words(again.ptr(), WORDS, 7, stream)?;
        self.report.words_checked += WORDS;
        drop(again);
        stage.allocator.empty_cache().map_err(failed)?;
        stage.allocator.verify().map_err(failed)?;
        Ok(self.report)
    }
}

/// The guest's part: receives a block over `socket`, uses it and answers.
///
/// # Errors
/// What did not work; the owner has been told as well.
pub fn visit(
    driver: &Arc<dyn Driver>,
    device: DeviceId,
    mut socket: &UnixStream,
    manners: Manners,
) -> Result<(), Failure> {
    let visited = use_block(driver, device, socket);
    let answer = match &visited {
        Ok((wrong, _)) => [1_u64.to_be_bytes(), wrong.to_be_bytes()].concat(),
        Err(failure) => {
            let words = failure.to_string();
            let words = &words.as_bytes()[..words.len().min(4096)];
            [&0_u64.to_be_bytes()[..], &(words.len() as u64).to_be_bytes(), words].concat()
        }
    };
    socket.write_all(&answer).map_err(failed)?;
    let (_, imported) = visited?;
    if manners == Manners::Stays {
        // Until the owner closes its end.
        let _ = socket.read(&mut [0]);
    }
    drop(imported);
    Ok(())
}

fn use_block(
    driver: &Arc<dyn Driver>,
    device: DeviceId,
    socket: &UnixStream,
) -> Result<(u64, ImportedBlock), Failure> {
    let received = sharing::receive(socket).map_err(failed)?;
    let options = StreamOptions { non_blocking: true, priority: 0 };
    let stream = driver.stream_create(device, options).map_err(failed)?;
    let imported = ImportedBlock::map(Arc::clone(driver), device, &received, stream).map_err(failed)?;
    let kernels = TestKernels::load(driver, device).map_err(failed)?;
    let direct: Arc<dyn Allocator> =
        Arc::new(headwater::Direct::new(Arc::clone(driver), device).map_err(failed)?);
    let counter = DeviceVec::<u32>::zeroed(direct, 1, stream).map_err(failed)?;
    let words = imported.bytes() / 4;
    // SAFETY: the block is mapped until it is dropped, which waits for the stream; the owner waits for the answer.
    unsafe {
        kernels.check(imported.ptr(), words, FROM_OWNER, counter.ptr(), stream).map_err(failed)?;
        kernels.fill(imported.ptr(), words, FROM_GUEST, stream).map_err(failed)?;
    }
    let wrong = read(&counter, stream)?;
    Ok((wrong, imported))
}
