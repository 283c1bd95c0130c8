//! A block's note and descriptors over a Unix socket.
//!
//! First the length of the note (4 bytes, little-endian) and the note, then the descriptors, up to 64 at a time, each batch with
//! one byte that counts it (`SCM_RIGHTS` travels with bytes). The receiver believes nothing: lengths are bounded, batches are
//! counted, and what came before a mistake is closed again. It waits as long as the socket's own time limit says.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::note::{BlockNote, MalformedNote};
use super::{ExportedBlock, ShareError};

/// Well below the kernel's limit for one message, 253.
const BATCH: usize = 64;

/// A block that another process exported, as it came over the socket.
#[derive(Debug)]
pub struct ReceivedBlock {
    note: BlockNote,
    fds: Vec<OwnedFd>,
}

impl ReceivedBlock {
    /// A note and its descriptors, however they came: one for each handle, in the same order.
    ///
    /// # Errors
    /// [`ShareError::WrongDescriptors`].
    pub fn new(note: BlockNote, fds: Vec<OwnedFd>) -> Result<Self, ShareError> {
        let (handles, descriptors) = (note.handles().len(), fds.len());
        if handles != descriptors {
            return Err(ShareError::WrongDescriptors { handles, descriptors });
        }
        Ok(Self { note, fds })
    }

    /// What the exporter says of it.
    pub fn note(&self) -> &BlockNote {
        &self.note
    }

    /// The sizes and descriptors of its handles.
    pub(super) fn handles(&self) -> impl Iterator<Item = (u64, BorrowedFd<'_>)> {
        self.note.handles().iter().copied().zip(self.fds.iter().map(AsFd::as_fd))
    }
}

/// Sends an exported block to the process at the other end. The export must live on until that one is done with it.
///
/// # Errors
/// [`ShareError::Socket`]; what the other side has by then is its own to close.
pub fn send(mut socket: &UnixStream, block: &ExportedBlock) -> Result<(), ShareError> {
    let note = block.note().to_bytes();
    // Bounded by the most handles there are.
    socket.write_all(&(note.len() as u32).to_le_bytes())?;
    socket.write_all(&note)?;
    let fds: Vec<BorrowedFd<'_>> = block.fds().collect();
    for batch in fds.chunks(BATCH) {
        send_batch(socket, batch)?;
    }
    Ok(())
}

fn send_batch(socket: &UnixStream, fds: &[BorrowedFd<'_>]) -> Result<(), ShareError> {
    let count = [fds.len() as u8];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        // There is room for a whole batch.
        control.push(SendAncillaryMessage::ScmRights(fds));
        match sendmsg(socket, &[IoSlice::new(&count)], &mut control, SendFlags::NOSIGNAL) {
            Ok(1) => return Ok(()),
            Ok(_) => return Err(closed()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(ShareError::Socket(error.into())),
        }
    }
}

/// Receives the next block that the process at the other end sends.
///
/// # Errors
/// [`ShareError::Malformed`] and [`ShareError::WrongDescriptors`] where what came is none; [`ShareError::Socket`]. Descriptors
/// that came are closed; the socket is of no more use, because nobody knows where the next block begins.
pub fn receive(mut socket: &UnixStream) -> Result<ReceivedBlock, ShareError> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > BlockNote::BYTES_MAX {
        return Err(MalformedNote::too_long(length).into());
    }
    let mut bytes = vec![0; length];
    socket.read_exact(&mut bytes)?;
    let note = BlockNote::from_bytes(&bytes)?;
    let mut fds = Vec::new();
    while fds.len() < note.handles().len() {
        receive_batch(socket, &mut fds)?;
    }
    ReceivedBlock::new(note, fds)
}

fn receive_batch(socket: &UnixStream, fds: &mut Vec<OwnedFd>) -> Result<(), ShareError> {
    let mut count = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut count)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            Err(error) => return Err(ShareError::Socket(error.into())),
        }
    };
    let before = fds.len();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(batch) = message {
            fds.extend(batch);
        }
    }
    if received.bytes == 0 {
        return Err(closed());
    }
    let (handles, descriptors) = (usize::from(count[0]), fds.len() - before);
    // Cut short: this process may open no more files, or the other one sent more than it said.
    if handles != descriptors || handles == 0 || received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(ShareError::WrongDescriptors { handles, descriptors });
    }
    Ok(())
}

fn closed() -> ShareError {
    ShareError::Socket(std::io::ErrorKind::UnexpectedEof.into())
}
