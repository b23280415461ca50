//! The interface of a guest's rings to the modules that decide about calls.

/// The part of a guest's ring that calls need.
pub trait GuestRing {
    /// The number of the ring's entries; 0 if it is not in service.
    fn size(&mut self) -> u32;

    /// Calls the guest if it asks for calls. Returns true if it did, `None` if there was nothing new.
    fn call_if_wanted(&mut self) -> Option<bool>;
}

/// A ring from which the guest receives.
pub trait ReceiveRing: GuestRing {
    /// An error that ends the service of the port.
    type Error;

    /// True if the guest can receive.
    fn is_ready(&self) -> bool;

    /// Shows the guest the next `chains` complete chains, with one index write.
    fn show(&mut self, chains: u16);

    /// Asks for a kick at the next buffer, and returns true if buffers came since the last check. `index` is the
    /// queue's.
    ///
    /// # Errors
    /// The guest broke a rule.
    fn arm(&mut self, index: usize) -> Result<bool, Self::Error>;

    /// The number of chains completed since the ring is in service.
    fn placed(&self) -> u64;

    /// True if the guest has taken the frames of a held call by polling.
    fn has_polled(&mut self) -> bool {
        false
    }

    /// Checks whether copied frames can be shown.
    ///
    /// # Errors
    /// The memory to which they were copied was truncated.
    fn check(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// A ring from which the guest sends.
pub trait TransmitRing: GuestRing {
    /// True if the guest would be called now.
    fn wants_call(&mut self) -> bool;
}

impl<R: GuestRing> GuestRing for Option<R> {
    #[inline]
    fn size(&mut self) -> u32 {
        self.as_mut().map_or(0, R::size)
    }

    #[inline]
    fn call_if_wanted(&mut self) -> Option<bool> {
        self.as_mut()?.call_if_wanted()
    }
}

impl<R: ReceiveRing> ReceiveRing for Option<R> {
    type Error = R::Error;

    fn is_ready(&self) -> bool {
        self.as_ref().is_some_and(R::is_ready)
    }

    #[inline]
    fn show(&mut self, chains: u16) {
        if let Some(ring) = self {
            ring.show(chains);
        }
    }

    fn arm(&mut self, index: usize) -> Result<bool, R::Error> {
        self.as_mut().map_or(Ok(false), |ring| ring.arm(index))
    }

    fn placed(&self) -> u64 {
        self.as_ref().map_or(0, R::placed)
    }

    fn has_polled(&mut self) -> bool {
        self.as_mut().is_some_and(R::has_polled)
    }

    fn check(&mut self) -> Result<(), R::Error> {
        self.as_mut().map_or(Ok(()), R::check)
    }
}

impl<R: TransmitRing> TransmitRing for Option<R> {
    #[inline]
    fn wants_call(&mut self) -> bool {
        self.as_mut().is_some_and(R::wants_call)
    }
}
