//! The dirty log of a guest that is migrated to another host: `docs/design/restarts.md#0034`.
//!
//! A front end states three things, in any order: the place of the log (`SET_LOG_BASE`), that writes into buffers are
//! logged (`VHOST_F_LOG_ALL`), and for each ring that its used area is logged, and where (`VHOST_VRING_F_LOG`).

use std::fs::File;
use std::sync::Arc;

use weir_guestmem::{Account, DirtyLog, GuestMemory, LogError, Piece, WriteLog};
use weir_ring::{RingConfig, RingLog};
use weir_vhost_user::LogBase;

use crate::error::{Fault, Refusal, StopReason};
use crate::notify::Notifier;

/// A front end's statements about its log.
#[derive(Debug, Default)]
pub(crate) struct Migration {
    log: Option<Arc<DirtyLog>>,
    call: Option<Arc<Notifier>>,
}

/// The log of a ring in service.
#[derive(Debug)]
pub(crate) struct Logging {
    log: Arc<DirtyLog>,
    /// The log of writes into buffers.
    pub(crate) data: Option<WriteLog>,
    /// The descriptor by which the front end hears of new marks.
    call: Option<Arc<Notifier>>,
}

/// The two parts of a ring's logging: of its buffers, and of the ring itself.
pub(crate) type Logs = (Option<Box<Logging>>, Option<Box<RingLog>>);

/// The kinds of logging that are wanted of a ring.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// `VHOST_F_LOG_ALL`.
    pub(crate) data: bool,
    /// `VHOST_VRING_F_LOG`: the guest addresses of the used area.
    pub(crate) used: Option<Vec<Piece>>,
}

impl Migration {
    /// `SET_LOG_BASE`. The log has a bit for all of `memory`.
    pub(crate) fn set_base(
        &mut self,
        base: LogBase,
        memory: &GuestMemory,
        account: &Arc<Account>,
    ) -> Result<(), Refusal> {
        let LogBase::Shared { log, fd: Some(fd) } = base else { return Err(Refusal::LogNotShared) };
        let log = DirtyLog::map(log.size, log.offset, &File::from(fd), account)?;
        if let Some(last) = memory.last_address() {
            log.check(last, 1)?;
        }
        self.log = Some(Arc::new(log));
        Ok(())
    }

    /// `SET_LOG_FD`.
    pub(crate) fn set_call(&mut self, call: Notifier) {
        self.call = Some(Arc::new(call));
    }

    /// Returns whether there is a log, and whether there is a descriptor that announces new marks.
    pub(crate) fn has(&self) -> (bool, bool) {
        (self.log.is_some(), self.call.is_some())
    }

    /// Drops the log, which is not needed any more.
    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }

    /// The logging of a ring in `memory`, whose descriptors are at these guest addresses.
    ///
    /// # Errors
    /// The log has no bit for a place that is written.
    pub(crate) fn of_ring(
        &self,
        wanted: Wanted,
        memory: &GuestMemory,
        config: &RingConfig,
        descriptors: Vec<Piece>,
    ) -> Result<Logs, LogError> {
        let Wanted { data, used } = wanted;
        let Some(log) = self.log.as_ref().filter(|_| data || used.is_some()) else {
            return Ok((None, None));
        };
        let data = data.then(|| WriteLog::new(Arc::clone(log), memory)).transpose()?;
        let of_ring = |used| RingLog::new(Arc::clone(log), config, descriptors, used);
        let used = used.map(of_ring).transpose()?.map(Box::new);
        let logging = Logging { log: Arc::clone(log), data, call: self.call.clone() };
        Ok((Some(Box::new(logging)), used))
    }
}

impl Logging {
    /// Checks that the log is still whole: always for an overrun, and for a truncation only if `faulted` says that
    /// shared memory was found missing.
    pub(crate) fn check(&self, faulted: bool) -> Result<(), Fault> {
        if faulted && self.log.is_poisoned() {
            return Err(StopReason::LogTruncated.into());
        }
        if self.log.is_overrun() { Err(StopReason::LogOverrun.into()) } else { Ok(()) }
    }

    /// The descriptor to notify, if there are new marks.
    pub(crate) fn to_tell(&self) -> Option<&Notifier> {
        self.call.as_deref().filter(|_| self.log.take_news())
    }
}
