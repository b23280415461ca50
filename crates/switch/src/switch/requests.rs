//! The dispatch of clients' requests.

use std::sync::TryLockError;

use weir_config::PortName;

use super::{Switch, shown};
use crate::capture::{CaptureRefused, CaptureRequest, Recording};
use crate::control::{ControlHandler, Request, Response};
use crate::events::Glance;
use crate::trace::{FollowRequest, LiveTrace};

impl Switch {
    /// Serialises requests that change the switch.
    pub(super) fn one_after_the_other(&self, change: impl FnOnce(&Self) -> Response) -> Response {
        let _changing = self.changing.lock().unwrap_or_else(|e| e.into_inner());
        self.changed(change)
    }

    /// As [`Self::one_after_the_other`], but does nothing while another change is under way.
    pub(super) fn unless_busy(&self, change: impl FnOnce(&Self) -> Response) -> Option<Response> {
        let _changing = match self.changing.try_lock() {
            Ok(changing) => changing,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(self.changed(change))
    }

    fn changed(&self, change: impl FnOnce(&Self) -> Response) -> Response {
        if let Some(refusal) = self.has_left() {
            return refusal;
        }
        let response = change(self);
        self.settle_mirrors();
        self.note();
        response
    }
}

impl Switch {
    /// Begins to copy frames.
    ///
    /// # Errors
    /// [`CaptureRefused`]
    pub fn capture(&self, request: CaptureRequest) -> Result<Recording, CaptureRefused> {
        Recording::begin(&self.engine, request, |name| self.port_id(name))
    }

    /// Begins to follow the next frames that `name` sends and that match. The switch never waits for the reader.
    ///
    /// # Errors
    /// [`CaptureRefused`]
    pub fn follow(
        &self,
        name: &PortName,
        request: &FollowRequest,
    ) -> Result<LiveTrace, CaptureRefused> {
        let ports = self.each_port(|id, name, _, vif| (id, name.clone(), vif.is_some()));
        LiveTrace::begin(&self.engine, request, self.port_id(name), ports, self.overlay_id())
    }
}

impl ControlHandler for Switch {
    fn handle(&self, request: Request) -> Response {
        match request {
            Request::VifAdd { config } => self.one_after_the_other(|it| {
                it.unlike_on_demand(&config).unwrap_or_else(|| it.vif_add(*config))
            }),
            Request::VifPut { config } => self.one_after_the_other(|it| {
                it.unlike_on_demand(&config).unwrap_or_else(|| it.vif_put(*config))
            }),
            Request::VifSet { name, changes } => {
                self.one_after_the_other(|it| it.vif_set(&name, *changes))
            }
            Request::VifDel { name } => self.one_after_the_other(|it| it.vif_del(&name)),
            Request::FilterSet { name, rules } => {
                self.one_after_the_other(|it| it.filter_set(&name, rules))
            }
            Request::GroupPut { group } => {
                self.one_after_the_other(|it| it.group_becomes(&group.name.clone(), Some(group)))
            }
            Request::GroupDel { name } => {
                self.one_after_the_other(|it| it.group_becomes(&name, None))
            }
            Request::VifOfTemplate { template, name, keys } => {
                self.of_template(&template, name, &keys)
            }
            Request::ConfigFile => Response::ConfigFile { path: self.config_file() },
            Request::Diff { text } => self.diff(&text),
            Request::Saved { text } => self.saved(&text),
            Request::Reload { text, extent } => self.reload(&text, extent),
            Request::Upgrade => self.upgrade(),
            Request::VifList(part) => self.vif_list(&part),
            Request::VifShow { name } => self.vif_show(&name),
            Request::VifExplain { name } => self.vif_explain(&name),
            Request::Addresses(part) => self.stations(&part),
            Request::Connections { name, from } => self.connections(&name, from),
            Request::Flush { of } => self.one_after_the_other(|it| it.flush(of.as_deref())),
            Request::Trace { name, frame } => self.traced(&name, &frame),
            Request::Stats => Response::Stats { stats: Box::new(self.own_stats()) },
            Request::PortNames => Response::PortNames { names: self.port_names() },
            Request::Ports(names) => Response::Ports { ports: self.port_stats(Some(&names)) },
            Request::Stages { on } => shown::measure_stages(on),
        }
    }

    fn glance(&self) -> Glance {
        self.look()
    }

    fn capture(&self, request: CaptureRequest) -> Result<Recording, CaptureRefused> {
        Self::capture(self, request)
    }

    fn follow(
        &self,
        name: &PortName,
        request: &FollowRequest,
    ) -> Result<LiveTrace, CaptureRefused> {
        Self::follow(self, name, request)
    }
}
