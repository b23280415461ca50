//! The dirty log of a guest that moves to another host: `docs/design/0034-migration.md`.
//!
//! A front end says where the log is (`SET_LOG_BASE`), that what goes into buffers is logged (`VHOST_F_LOG_ALL`), and of
//! each ring that its used area is logged, and where (`VHOST_VRING_F_LOG`). It says these things in any order.

use std::fs::File;
use std::sync::Arc;

use weir_guestmem::{Account, DirtyLog, GuestMemory, LogError, WriteLog};
use weir_ring::{Addresses, RingConfig, RingLog};
use weir_vhost_user::LogBase;

use crate::error::{Refusal, StopReason};
use crate::notify::Notifier;

/// What a front end has said of its log.
#[derive(Debug, Default)]
pub(crate) struct Migration {
    log: Option<Arc<DirtyLog>>,
    call: Option<Arc<Notifier>>,
}

/// What a ring in service logs.
#[derive(Debug)]
pub(crate) struct Logging {
    log: Arc<DirtyLog>,
    /// What is written into buffers.
    pub(crate) data: Option<WriteLog>,
    /// Where the front end wants to hear of new marks.
    call: Option<Arc<Notifier>>,
}

/// The two parts of a ring's logging: of its buffers, and of the ring itself.
pub(crate) type Logs = (Option<Box<Logging>>, Option<Box<RingLog>>);

/// What is logged of a ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// `VHOST_F_LOG_ALL`.
    pub(crate) data: bool,
    /// `VHOST_VRING_F_LOG`: the guest address of the used area.
    pub(crate) used: Option<u64>,
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

    /// Whether there is a log, and whether somebody wants to hear of new marks.
    pub(crate) fn has(&self) -> (bool, bool) {
        (self.log.is_some(), self.call.is_some())
    }

    /// The log is not needed any more.
    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }

    /// What a ring at `at` of `memory` is to log.
    ///
    /// # Errors
    /// The log has no bit for something that is written.
    pub(crate) fn of_ring(
        &self,
        wanted: Wanted,
        memory: &GuestMemory,
        config: &RingConfig,
        at: &Addresses,
    ) -> Result<Logs, LogError> {
        let Wanted { data, used } = wanted;
        let Some(log) = self.log.as_ref().filter(|_| data || used.is_some()) else {
            return Ok((None, None));
        };
        let data = data.then(|| WriteLog::new(Arc::clone(log), memory)).transpose()?;
        let of_ring = |used| RingLog::new(Arc::clone(log), memory, config, at, used).map(Box::new);
        let used = used.map(of_ring).transpose()?;
        let logging = Logging { log: Arc::clone(log), data, call: self.call.clone() };
        Ok((Some(Box::new(logging)), used))
    }
}

impl Logging {
    /// The log is still one. It is asked only for an overrun: `faulted` says that shared memory was found to be gone.
    pub(crate) fn check(&self, faulted: bool) -> Result<(), StopReason> {
        if faulted && self.log.is_poisoned() {
            return Err(StopReason::LogTruncated);
        }
        if self.log.is_overrun() { Err(StopReason::LogOverrun) } else { Ok(()) }
    }

    /// Whom to tell that there are new marks.
    pub(crate) fn to_tell(&self) -> Option<&Notifier> {
        self.call.as_deref().filter(|_| self.log.take_news())
    }
}
