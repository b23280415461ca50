//! A dirty log, like that of a VM monitor whose guest is migrated to another host.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use weir_vhost_user::{DirtyLog, Request, VHOST_VRING_F_LOG, VringAddr};

use crate::error::VifError;
use crate::handshake::at;
use crate::vif::Vif;

/// `VHOST_F_LOG_ALL`: the back end logs its writes into buffers.
const LOG_ALL: u64 = 1 << 26;
/// Guest memory per bit (bytes).
const PAGE: u64 = 4096;

/// The log: one bit for each page from address 0 on.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    len: u64,
}

impl Log {
    fn new(memory_end: u64) -> Result<Self, VifError> {
        let len = memory_end.div_ceil(8 * PAGE).next_multiple_of(PAGE);
        let os = |call| move |errno: rustix::io::Errno| VifError::Os { call, source: errno.into() };
        let fd = memfd_create("weir-vif-log", MemfdFlags::CLOEXEC).map_err(os("memfd_create"))?;
        ftruncate(&fd, len).map_err(os("ftruncate"))?;
        Ok(Self { file: File::from(fd), len })
    }
}

impl Vif {
    /// Turns the back end's log of writes into the interface's memory on or off, while the rings
    /// run.
    ///
    /// # Errors
    /// [`VifError::Handshake`]: the back end has no dirty logs, or reports a failure.
    pub fn log_writes(&mut self, on: bool) -> Result<(), VifError> {
        if on && self.log.is_none() {
            self.log = Some(Log::new(self.memory.end())?);
        }
        if let Some(log) = self.log.as_ref().filter(|_| on) {
            let place = DirtyLog { size: log.len, offset: 0 };
            let result = self.front.set_log_base(place, log.file.as_fd());
            at(Request::SetLogBase, None, result)?;
        }
        let features = self.features.0 | if on { LOG_ALL } else { 0 };
        at(Request::SetFeatures, None, self.front.set_features(features))?;
        for (index, ring) in (0..).zip(&self.rings) {
            let to = ring.addresses();
            let addr = VringAddr {
                index,
                flags: if on { VHOST_VRING_F_LOG } else { 0 },
                descriptor: to.descriptor,
                used: to.device,
                available: to.driver,
                log: self.memory.guest_address(to.device),
            };
            at(Request::SetVringAddr, Some(index), self.front.set_vring_addr(addr))?;
        }
        Ok(())
    }

    /// Counts the pages in the log, and clears it. Concurrent writes may be missed: this suffices for a measurement,
    /// not for a migration.
    ///
    /// # Errors
    /// The log cannot be read or written.
    pub fn clear_log(&self) -> io::Result<u64> {
        let Some(log) = &self.log else { return Ok(0) };
        let mut bytes = vec![0; log.len as usize];
        log.file.read_exact_at(&mut bytes, 0)?;
        let mut pages = 0;
        for (index, byte) in bytes.iter().enumerate().filter(|(_, byte)| **byte != 0) {
            pages += u64::from(byte.count_ones());
            log.file.write_all_at(&[0], index as u64)?;
        }
        Ok(pages)
    }
}
