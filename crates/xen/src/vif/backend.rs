//! The back end's half of the handshake (`xen/include/public/io/xenbus.h`), as pure logic.

/// `enum xenbus_state`, as both ends write it to their `state` nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum XenbusState {
    /// The beginning.
    Initialising = 1,
    /// The back end has advertised its features, and waits for the front end's keys.
    InitWait = 2,
    /// The front end has written its keys.
    Initialised = 3,
    /// The vif is in use.
    Connected = 4,
    /// The end: each side that sees it releases its resources.
    Closing = 5,
    /// Resources are released.
    Closed = 6,
    /// The front end changes its settings.
    Reconfiguring = 7,
    /// The back end has noted the new settings.
    Reconfigured = 8,
}

impl XenbusState {
    const ALL: [Self; 8] = [
        Self::Initialising,
        Self::InitWait,
        Self::Initialised,
        Self::Connected,
        Self::Closing,
        Self::Closed,
        Self::Reconfiguring,
        Self::Reconfigured,
    ];

    /// Returns the state that a `state` node's value names, if it is valid.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let [digit] = value else { return None };
        Self::ALL.into_iter().find(|state| *state as u8 + b'0' == *digit)
    }

    /// Returns the value of a `state` node.
    pub fn to_value(self) -> [u8; 1] {
        [self as u8 + b'0']
    }
}

/// Content of xenstore at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The back end's directory exists. The toolstack removes it with the vif.
    pub present: bool,
    /// The back end's own `state` node. The toolstack writes it, too.
    pub own: Option<XenbusState>,
    /// The toolstack wants the vif to stay (`online`). Otherwise the `Closing` that the toolstack
    /// writes to the back end's `state` asks the front end to close.
    pub online: bool,
    /// The front end's `state`; `None` if it is absent, such as after the domain's death, or
    /// invalid.
    pub front: Option<XenbusState>,
}

/// An action of the back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write weir's features, then the state `InitWait`.
    Advertise,
    /// Read the front end's keys, map its rings and bind its channels; then call
    /// [`Backend::connected`] or [`Backend::failed`].
    Connect,
    /// Release everything that `Connect` has taken.
    Disconnect,
    /// Write this state.
    Publish(XenbusState),
    /// Forget the vif, which was removed.
    Forget,
}

/// One vif's back end. It acts on the present state alone: a xenstore watch reports only that there
/// was a change, and one event may stand for several.
///
/// The transitions are those of Linux's netback, which front ends expect:
///
/// ```text
/// Initialising --> InitWait --> Connected
///                     ^  \          |
///                     |   v         v
///                   Closed <---- Closing
/// ```
#[derive(Debug)]
pub struct Backend {
    /// State that weir published last.
    state: XenbusState,
    /// Rings are mapped.
    in_use: bool,
}

impl Default for Backend {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend {
    /// Returns the back end of a vif that weir has just found. A state that an earlier process
    /// published does not count: a front end that is still connected is served again.
    pub fn new() -> Self {
        Self { state: XenbusState::Initialising, in_use: false }
    }

    /// Returns the state that weir published last.
    pub fn state(&self) -> XenbusState {
        self.state
    }

    /// Returns the actions that lead from the present state to the one `seen` requires.
    pub fn step(&mut self, seen: Seen) -> Vec<Action> {
        let mut actions = Vec::new();
        if !seen.present {
            self.disconnect(&mut actions);
            self.state = XenbusState::Closed;
            actions.push(Action::Forget);
            return actions;
        }
        if seen.own == Some(XenbusState::Initialising) && self.state != XenbusState::Initialising {
            // The toolstack has made the vif again, and no event has shown the end of the old one.
            self.disconnect(&mut actions);
            self.state = XenbusState::Initialising;
        }
        if !seen.online && seen.own == Some(XenbusState::Connected) {
            // The toolstack wrote `Closing` while weir was connecting, and weir overwrote it. So
            // the front end was not asked to close, and never will be.
            self.disconnect(&mut actions);
        }
        if !seen.online && !self.in_use {
            // The vif is detached and nothing is left to release. The toolstack waits for `Closed`. It has overwritten
            // weir's state, even if that state was `Closed` already.
            if self.state != XenbusState::Closed || seen.own != Some(XenbusState::Closed) {
                self.state = XenbusState::Closed;
                actions.push(Action::Publish(XenbusState::Closed));
            }
            return actions;
        }
        match seen.front {
            Some(XenbusState::Initialising) => self.wait(&mut actions),
            Some(XenbusState::Connected) => {
                // After a failure the front end has to start again.
                if self.state == XenbusState::Initialising {
                    self.wait(&mut actions);
                }
                if self.state == XenbusState::InitWait {
                    actions.push(Action::Connect);
                }
            }
            Some(XenbusState::Closing) => {
                self.disconnect(&mut actions);
                if self.state != XenbusState::Closed {
                    self.publish(XenbusState::Closing, &mut actions);
                }
            }
            Some(XenbusState::Closed) | None => {
                self.disconnect(&mut actions);
                self.publish(XenbusState::Closed, &mut actions);
            }
            // The keys may be incomplete, or the front end should not be in this state.
            Some(
                XenbusState::InitWait
                | XenbusState::Initialised
                | XenbusState::Reconfiguring
                | XenbusState::Reconfigured,
            ) => {
                if self.state == XenbusState::Initialising {
                    self.wait(&mut actions);
                }
            }
        }
        actions
    }

    /// Notes that `Connect` has succeeded. Returns the next action.
    pub fn connected(&mut self) -> Action {
        self.in_use = true;
        self.state = XenbusState::Connected;
        Action::Publish(XenbusState::Connected)
    }

    /// Notes that `Connect` failed, or that the guest broke a rule later. Returns the next actions.
    /// The vif stays closed until its front end starts again.
    pub fn failed(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        self.disconnect(&mut actions);
        self.publish(XenbusState::Closing, &mut actions);
        actions
    }

    /// Goes to `InitWait`, through `Closing` and `Closed` if the front end starts again without a
    /// farewell.
    fn wait(&mut self, actions: &mut Vec<Action>) {
        if self.state == XenbusState::InitWait {
            return;
        }
        if self.in_use {
            self.disconnect(actions);
            self.publish(XenbusState::Closing, actions);
        }
        if self.state == XenbusState::Closing {
            self.publish(XenbusState::Closed, actions);
        }
        self.state = XenbusState::InitWait;
        actions.push(Action::Advertise);
    }

    fn disconnect(&mut self, actions: &mut Vec<Action>) {
        if std::mem::take(&mut self.in_use) {
            actions.push(Action::Disconnect);
        }
    }

    fn publish(&mut self, state: XenbusState, actions: &mut Vec<Action>) {
        if self.state != state {
            self.state = state;
            actions.push(Action::Publish(state));
        }
    }
}
