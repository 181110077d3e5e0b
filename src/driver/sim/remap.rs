//! Host memory that comes and goes under fixed addresses: a file in memory stands for the physical
//! memory of a device, a window for a reserved range. Knows neither device addresses nor handles.
//!
//! Needs Linux: elsewhere a device that keeps bytes has no virtual memory. A forked child shares the
//! file with its parent, so it must leave the bytes alone, as it must leave a device alone.
use super::holes::Holes;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ptr::NonNull;

/// The unit in which a window is opened and closed, in bytes; none where the host cannot do it.
pub(super) fn page_bytes() -> Option<u64> {
    system::page_bytes()
}

/// Places in the file; the host spends memory only on those that were touched and not given back.
const PLACES: u64 = 1 << 62;

/// The physical memory of a device.
#[derive(Debug)]
pub(super) struct HostFile {
    /// Made when it is first needed.
    file: Option<File>,
    length: u64,
    holes: Holes,
}

/// A reserved range of host addresses. What is not open cannot be touched.
#[derive(Debug)]
pub(super) struct Window {
    start: NonNull<u8>,
    bytes: usize,
    /// Bytes of each piece that is open, by its offset.
    open: BTreeMap<usize, usize>,
}

// SAFETY: the window is the only owner of its addresses, which are bound to no thread.
unsafe impl Send for Window {}

impl HostFile {
    pub(super) fn new() -> HostFile {
        HostFile { file: None, length: 0, holes: Holes::new(0, PLACES) }
    }

    /// The place of `bytes` zeros.
    pub(super) fn create(&mut self, bytes: u64) -> io::Result<u64> {
        let place = self.holes.take(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let grown = self.grow(place + bytes);
        if grown.is_err() {
            self.holes.give(place, bytes);
        }
        grown.map(|()| place)
    }

    /// Gives the bytes at `place` back to the host; in its window they must not be open any more.
    pub(super) fn release(&mut self, place: u64, bytes: u64) -> io::Result<()> {
        if let Some(file) = &self.file {
            system::punch(file, place, bytes)?;
        }
        self.holes.give(place, bytes);
        Ok(())
    }

    /// The file never shrinks, so that what is open always has bytes behind it.
    fn grow(&mut self, length: u64) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(system::file()?),
        };
        if length > self.length {
            file.set_len(length)?;
            self.length = length;
        }
        Ok(())
    }
}

impl Window {
    /// `bytes` addresses, none of them open.
    pub(super) fn reserve(bytes: u64) -> io::Result<Window> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Window { start: system::reserve(bytes)?, bytes, open: BTreeMap::new() })
    }

    /// Puts `bytes` of `file` from `place` on at offset `at`, where nothing is open.
    pub(super) fn open(
        &mut self,
        at: usize,
        bytes: usize,
        file: &HostFile,
        place: u64,
    ) -> io::Result<()> {
        let end = at.checked_add(bytes).filter(|&end| end <= self.bytes);
        let below = end.and_then(|end| self.open.range(..end).next_back());
        let has_room = end.is_some() && below.is_none_or(|(&o, &b)| o + b <= at);
        assert!(has_room, "a piece is opened where the window has room");
        assert!(place + bytes as u64 <= file.length, "a piece is of the file");
        let file = file.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: the addresses are this window's own, and nothing points at them: they were not open.
        unsafe { system::open(self.pointer(at), bytes, file, place)? };
        self.open.insert(at, bytes);
        Ok(())
    }

    /// Closes the pieces that are open in `bytes` from `at` on, whole ones. Pointers into them must not
    /// be used again: they fault.
    pub(super) fn close(&mut self, at: usize, bytes: usize) -> io::Result<()> {
        let end = at.checked_add(bytes).filter(|&end| end <= self.bytes);
        let end = end.expect("what is closed is in the window");
        for edge in [at, end] {
            let below = self.open.range(..edge).next_back();
            assert!(below.is_none_or(|(&o, &b)| o + b <= edge), "whole pieces are closed");
        }
        // SAFETY: the addresses are this window's own, and references into it have ended, since they
        // borrow it.
        unsafe { system::close(self.pointer(at), bytes)? };
        let closed: Vec<usize> = self.open.range(at..end).map(|(&offset, _)| offset).collect();
        closed.iter().for_each(|offset| _ = self.open.remove(offset));
        Ok(())
    }

    /// Where offset `at` lies.
    pub(super) fn pointer(&self, at: usize) -> *mut u8 {
        self.start.as_ptr().wrapping_add(at)
    }

    /// # Panics
    /// If not all of it is open.
    pub(super) fn slice(&self, at: usize, bytes: usize) -> &[u8] {
        self.assert_open(at, bytes);
        // SAFETY: the bytes are open, so they can be read and are initialised (a file's); the borrow of
        // self keeps them open, and no `&mut` into the file exists meanwhile, since the device that has
        // file and windows is borrowed.
        unsafe { std::slice::from_raw_parts(self.pointer(at), bytes) }
    }

    /// # Panics
    /// If not all of it is open.
    pub(super) fn slice_mut(&mut self, at: usize, bytes: usize) -> &mut [u8] {
        self.assert_open(at, bytes);
        // SAFETY: as in `slice`, and the borrow of self, and with it of the device, is unique.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(at), bytes) }
    }

    fn assert_open(&self, at: usize, bytes: usize) {
        let end = at.checked_add(bytes).expect("a slice ends");
        let mut next = at;
        let reaching = self.open.range(..=at).next_back().map_or(at, |(&offset, _)| offset);
        for (&offset, piece) in self.open.range(reaching..end.max(reaching)) {
            if offset > next {
                break;
            }
            next = next.max(offset + piece);
        }
        assert!(next >= end, "only what is open is sliced");
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the addresses are this window's own; nothing uses them after it.
        unsafe { system::unreserve(self.start, self.bytes) }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs::File;
    use std::io;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::ptr::{NonNull, null_mut};

    pub(super) fn page_bytes() -> Option<u64> {
        // SAFETY: no preconditions.
        u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()
    }

    pub(super) fn file() -> io::Result<File> {
        // SAFETY: the name is a C string.
        let file = unsafe { libc::memfd_create(c"aquifer".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, so nobody else owns it.
        Ok(File::from(unsafe { OwnedFd::from_raw_fd(file) }))
    }

    /// Lets the host have the bytes back; they read as zeros.
    pub(super) fn punch(file: &File, place: u64, bytes: u64) -> io::Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (place, bytes) = (offset(place)?, offset(bytes)?);
        // SAFETY: the descriptor is open.
        let code = unsafe { libc::fallocate(file.as_raw_fd(), mode, place, bytes) };
        if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Addresses that cannot be touched.
    pub(super) fn reserve(bytes: usize) -> io::Result<NonNull<u8>> {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the host chooses the addresses, so that nothing else is there.
        let start = unsafe { libc::mmap(null_mut(), bytes, libc::PROT_NONE, kind, -1, 0) };
        mapped(start)
    }

    /// # Safety
    /// The addresses are the caller's, and nothing uses what was there.
    pub(super) unsafe fn open(
        start: *mut u8,
        bytes: usize,
        file: &File,
        place: u64,
    ) -> io::Result<()> {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        let (file, place) = (file.as_raw_fd(), offset(place)?);
        // SAFETY: as the caller vouches.
        mapped(unsafe { libc::mmap(start.cast(), bytes, access, kind, file, place) })?;
        Ok(())
    }

    /// # Safety
    /// As [`open`].
    pub(super) unsafe fn close(start: *mut u8, bytes: usize) -> io::Result<()> {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: as the caller vouches.
        mapped(unsafe { libc::mmap(start.cast(), bytes, libc::PROT_NONE, kind, -1, 0) })?;
        Ok(())
    }

    /// # Safety
    /// The addresses are the caller's, and nothing uses them any more.
    pub(super) unsafe fn unreserve(start: NonNull<u8>, bytes: usize) {
        // SAFETY: as the caller vouches. Where the host refuses, addresses are lost and nothing else.
        let _ = unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
    }

    fn mapped(start: *mut libc::c_void) -> io::Result<NonNull<u8>> {
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
    }

    fn offset(place: u64) -> io::Result<libc::off_t> {
        libc::off_t::try_from(place).map_err(|_| io::ErrorKind::OutOfMemory.into())
    }
}

/// There is none of this here.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::fs::File;
    use std::io;
    use std::ptr::NonNull;

    pub(super) fn page_bytes() -> Option<u64> {
        None
    }

    pub(super) fn file() -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn punch(_: &File, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn reserve(_: usize) -> io::Result<NonNull<u8>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) unsafe fn open(_: *mut u8, _: usize, _: &File, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) unsafe fn close(_: *mut u8, _: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) unsafe fn unreserve(_: NonNull<u8>, _: usize) {}
}
