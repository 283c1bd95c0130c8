//! Copies and fills.

use headwater_driver::{Call, Copies, DeviceId, DevicePtr, Result, Stream};

use crate::CudaDriver;
use crate::call_site::{CallSite, StreamInUse};

impl Copies for CudaDriver {
    unsafe fn copy_to_device(
        &self,
        dst: DevicePtr,
        src: *const u8,
        bytes: u64,
        stream: Stream,
    ) -> Result<()> {
        let site = self.call(Call::CopyToDevice);
        let Some((stream, size)) = work(site, stream, bytes)? else { return Ok(()) };
        let (dst, src) = (site.not_null(dst)?, host_not_null(site, src)?);
        // SAFETY: the stream is held; the caller vouches for both ranges.
        site.run(stream.context, |cuda| unsafe {
            (cuda.memcpy_htod_async)(dst, src.cast(), size, stream.raw)
        })
    }

    unsafe fn copy_to_host(&self, dst: *mut u8, src: DevicePtr, bytes: u64, stream: Stream) -> Result<()> {
        let site = self.call(Call::CopyToHost);
        let Some((stream, size)) = work(site, stream, bytes)? else { return Ok(()) };
        let (dst, src) = (host_not_null(site, dst)?.cast_mut(), site.not_null(src)?);
        // SAFETY: the stream is held; the caller vouches for both ranges.
        site.run(stream.context, |cuda| unsafe {
            (cuda.memcpy_dtoh_async)(dst.cast(), src, size, stream.raw)
        })
    }

    unsafe fn copy_on_device(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: Stream,
    ) -> Result<()> {
        let site = self.call(Call::CopyOnDevice);
        let Some((stream, size)) = work(site, stream, bytes)? else { return Ok(()) };
        let (dst, src) = (site.not_null(dst)?, site.not_null(src)?);
        // SAFETY: the stream is held; the caller vouches for both ranges.
        site.run(stream.context, |cuda| unsafe { (cuda.memcpy_dtod_async)(dst, src, size, stream.raw) })
    }

    unsafe fn copy_peer(
        &self,
        dst: (DeviceId, DevicePtr),
        src: (DeviceId, DevicePtr),
        bytes: u64,
        stream: Stream,
    ) -> Result<()> {
        let site = self.call(Call::CopyPeer);
        site.device(dst.0)?;
        site.device(src.0)?;
        let Some((stream, size)) = work(site, stream, bytes)? else { return Ok(()) };
        let (to, from) = (site.context(dst.0)?.raw(), site.context(src.0)?.raw());
        let (dst, src) = (site.not_null(dst.1)?, site.not_null(src.1)?);
        // SAFETY: stream and contexts are held; the caller vouches for both ranges.
        site.run(stream.context, |cuda| unsafe {
            (cuda.memcpy_peer_async)(dst, to, src, from, size, stream.raw)
        })
    }

    unsafe fn fill_bytes(&self, dst: DevicePtr, value: u8, bytes: u64, stream: Stream) -> Result<()> {
        let site = self.call(Call::FillBytes);
        let Some((stream, size)) = work(site, stream, bytes)? else { return Ok(()) };
        let dst = site.not_null(dst)?;
        // SAFETY: the stream is held; the caller vouches for the range.
        site.run(stream.context, |cuda| unsafe { (cuda.memset_d8_async)(dst, value, size, stream.raw) })
    }

    unsafe fn fill_words(&self, dst: DevicePtr, value: u32, words: u64, stream: Stream) -> Result<()> {
        let site = self.call(Call::FillWords);
        let Some((stream, count)) = work(site, stream, words)? else { return Ok(()) };
        if !dst.is_aligned_to(4) {
            return Err(site.invalid(format!("{dst} is not aligned to 4 bytes")));
        }
        let dst = site.not_null(dst)?;
        // SAFETY: the stream is held; the caller vouches for the range.
        site.run(stream.context, |cuda| unsafe { (cuda.memset_d32_async)(dst, value, count, stream.raw) })
    }
}

/// The stream and the size of a piece of work, or `None` where there is nothing to do. A size of zero stays here: some of
/// these calls refuse it.
fn work<'d>(site: CallSite<'d>, stream: Stream, size: u64) -> Result<Option<(StreamInUse<'d>, usize)>> {
    let stream = site.stream(stream)?;
    if size == 0 { Ok(None) } else { Ok(Some((stream, site.size(size)?))) }
}

fn host_not_null(site: CallSite<'_>, ptr: *const u8) -> Result<*const u8> {
    if ptr.is_null() { Err(site.invalid("a null host address")) } else { Ok(ptr) }
}
