//! Requests that read.

use std::collections::BTreeMap;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::Map;
use weir_config::{PortName, TemplateName, VifConfig};
use weir_limits::CONTROL_ADDRESSES_MAX;
use weir_switch::control::{
    AddressEntry, ControlHandler, Request as Ask, Response as Answer, VifShown, VifStatus,
};
use weir_switch::explain::Explanation;
use weir_switch::stats::{ConnectionPage, PortStats, QueuePairStats, RuleStats, SwitchStats};

use super::write::ConfigurationSource;
use crate::api::{Api, Endless, Named, Reader, counters, json, of_port, written};
use crate::metrics;
use crate::problem::Problem;

/// The whole switch: workers, limits, and every port's counters.
#[utoipa::path(get, path = "/v1/switch", responses((status = 200, body = SwitchStats)))]
pub(super) async fn switch(State(api): State<Api>, Reader(asker): Reader) -> Response {
    api.show(&asker, Ok).await
}

/// Every port: interfaces and uplinks.
#[utoipa::path(get, path = "/v1/ports", responses((status = 200, body = Vec<PortStats>)))]
pub(super) async fn ports(State(api): State<Api>, Reader(asker): Reader) -> Response {
    api.show(&asker, |stats| Ok(stats.ports)).await
}

/// One port.
#[utoipa::path(
    get, path = "/v1/ports/{port}", params(("port" = PortName, Path)),
    responses((status = 200, body = PortStats), (status = 404, body = Problem))
)]
pub(super) async fn port(
    State(api): State<Api>,
    Reader(asker): Reader,
    Named(name): Named,
) -> Response {
    api.show(&asker, move |stats| of_port(stats, &name)).await
}

/// A port's queue pairs.
#[utoipa::path(
    get, path = "/v1/ports/{port}/queues", params(("port" = PortName, Path)),
    responses((status = 200, body = Vec<QueuePairStats>), (status = 404, body = Problem))
)]
pub(super) async fn queues(
    State(api): State<Api>,
    Reader(asker): Reader,
    Named(name): Named,
) -> Response {
    api.show(&asker, move |stats| Ok(of_port(stats, &name)?.queues)).await
}

/// The decisions of a port's policies, and the reasons. The port `placement` stands for the placement of workers,
/// unless a port has this name.
#[utoipa::path(
    get, path = "/v1/ports/{port}/policies", params(("port" = PortName, Path)),
    responses((status = 200, body = Explanation), (status = 404, body = Problem))
)]
pub(super) async fn policies(
    State(api): State<Api>,
    Reader(asker): Reader,
    Named(name): Named,
) -> Response {
    let job = |handler: &dyn ControlHandler| {
        Ok(match handler.handle(Ask::VifExplain { name }) {
            Answer::Explained { explanation } => json(&explanation),
            Answer::UplinkExplained { explanation } => json(&explanation),
            Answer::PlacementExplained { explanation } => json(&explanation),
            Answer::OverlayExplained { explanation } => json(&explanation),
            other => return Err(Problem::of(other)),
        })
    };
    api.answer(&asker, job).await
}

/// A port's filter rules, with the counts of their matches.
#[utoipa::path(
    get, path = "/v1/ports/{port}/filter", params(("port" = PortName, Path)),
    responses((status = 200, body = Vec<RuleStats>), (status = 404, body = Problem))
)]
pub(super) async fn filter(
    State(api): State<Api>,
    Reader(asker): Reader,
    Named(name): Named,
) -> Response {
    api.show(&asker, move |stats| Ok(of_port(stats, &name)?.filter)).await
}

/// Dropped frames, by port and reason.
#[utoipa::path(
    get, path = "/v1/drops",
    responses((status = 200, body = BTreeMap<PortName, BTreeMap<String, u64>>))
)]
pub(super) async fn drops(State(api): State<Api>, Reader(asker): Reader) -> Response {
    let drops = |stats: SwitchStats| {
        let ports = stats.ports.into_iter().map(|port| (port.name, port.drops));
        Ok(ports.collect::<BTreeMap<_, _>>())
    };
    api.show(&asker, drops).await
}

/// The counters in the text format of Prometheus.
#[utoipa::path(
    get, path = "/metrics", responses((status = 200, body = String, content_type = "text/plain"))
)]
pub(super) async fn metrics(State(api): State<Api>, Reader(asker): Reader) -> Response {
    let connections = api.places.taken();
    let job = move |handler: &dyn ControlHandler| {
        Ok(written(metrics::TEXT, metrics::metrics(&counters(handler, connections)?)))
    };
    api.answer(&asker, job).await
}

/// The part of a list that is asked for.
#[derive(Debug, Clone, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Part {
    /// The last address of the part before, as `VLAN/MAC`.
    after: Option<String>,
    /// Most addresses of this part, at most 4096.
    limit: Option<usize>,
}

/// Stations that the switch knows, and the port behind which each is: at most 4096. The header `x-total-count` has the
/// number of all. The next part is `after` the last address of this one, and an empty part is the end.
#[utoipa::path(
    get, path = "/v1/addresses", params(Part),
    responses((status = 200, body = Vec<AddressEntry>), (status = 400, body = Problem))
)]
pub(super) async fn addresses(
    State(api): State<Api>,
    Reader(asker): Reader,
    part: Result<Query<Part>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let Query(Part { after, limit }) = part.map_err(|error| Problem::bad(error.body_text()))?;
    let address = |text: &str| {
        let (vlan, mac) = text.split_once('/')?;
        Some((vlan.parse().ok()?, mac.parse().ok()?))
    };
    let bad = || {
        Problem::bad("`after` is the VLAN and the MAC address of an entry, as 7/52:54:00:00:00:01")
    };
    let after = after.map(|after| address(&after).ok_or_else(bad)).transpose()?;
    let ask = Ask::Addresses { after, limit: limit.unwrap_or(CONTROL_ADDRESSES_MAX) };
    let job = |handler: &dyn ControlHandler| match handler.handle(ask) {
        Answer::Addresses { addresses, total } => {
            let mut response = json(&addresses);
            response.headers_mut().insert("x-total-count", total.into());
            Ok(response)
        }
        other => Err(Problem::of(other)),
    };
    Ok(api.answer(&asker, job).await)
}

/// The place at which a page begins.
#[derive(Debug, Clone, Copy, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// `next` of the page before.
    #[serde(default)]
    from: u32,
}

/// Connections of an interface in groups, page by page. A connection that is there for the whole time is in one page.
#[utoipa::path(
    get, path = "/v1/ports/{port}/connections", params(("port" = PortName, Path), Page),
    responses((status = 200, body = ConnectionPage), (status = 404, body = Problem))
)]
pub(super) async fn connections(
    State(api): State<Api>,
    Reader(asker): Reader,
    Named(name): Named,
    page: Result<Query<Page>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let Query(Page { from }) = page.map_err(|error| Problem::bad(error.body_text()))?;
    let job =
        move |handler: &dyn ControlHandler| match handler.handle(Ask::Connections { name, from }) {
            Answer::Connections { page } => Ok(json(&page)),
            other => Err(Problem::of(other)),
        };
    Ok(api.answer(&asker, job).await)
}

/// Every interface with its configuration.
#[utoipa::path(get, path = "/v1/vifs", responses((status = 200, body = Vec<VifStatus>)))]
pub(super) async fn vifs(State(api): State<Api>, Reader(asker): Reader) -> Response {
    let job = |handler: &dyn ControlHandler| match handler.handle(Ask::VifList) {
        Answer::Vifs { vifs } => Ok(json(&vifs)),
        other => Err(Problem::of(other)),
    };
    api.answer(&asker, job).await
}

/// One interface: each of its settings, and the source of each.
#[utoipa::path(
    get, path = "/v1/vifs/{vif}", params(("vif" = PortName, Path)),
    responses((status = 200, body = VifShown), (status = 404, body = Problem))
)]
pub(super) async fn vif(
    State(api): State<Api>,
    Reader(asker): Reader,
    Named(name): Named,
) -> Response {
    let job = |handler: &dyn ControlHandler| match handler.handle(Ask::VifShow { name }) {
        Answer::Shown { vif } => Ok(json(&vif)),
        other => Err(Problem::of(other)),
    };
    api.answer(&asker, job).await
}

/// The interface that a template makes, with a default socket. Nothing is added: send it, with changes, to
/// `/v1/vifs`.
#[utoipa::path(
    get, path = "/v1/templates/{template}/vifs/{vif}",
    params(("template" = TemplateName, Path), ("vif" = PortName, Path)),
    responses(
        (status = 200, body = VifConfig), (status = 400, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem)
    )
)]
pub(super) async fn vif_of_template(
    State(api): State<Api>,
    Reader(asker): Reader,
    named: Result<Path<(TemplateName, PortName)>, PathRejection>,
) -> Result<Response, Problem> {
    let Path((template, name)) = named.map_err(|error| Problem::bad(error.body_text()))?;
    let ask = Ask::VifOfTemplate { template, name, keys: Map::new() };
    let job = |handler: &dyn ControlHandler| match handler.handle(ask) {
        Answer::Vif { config } => Ok(json(&config)),
        other => Err(Problem::of(other)),
    };
    Ok(api.answer(&asker, job).await)
}

/// The configuration file with which weir was started.
#[utoipa::path(
    get, path = "/v1/configuration", responses((status = 200, body = ConfigurationSource))
)]
pub(super) async fn configuration(State(api): State<Api>, Reader(asker): Reader) -> Response {
    let job = |handler: &dyn ControlHandler| match handler.handle(Ask::ConfigFile) {
        Answer::ConfigFile { path } => Ok(json(&ConfigurationSource { path })),
        other => Err(Problem::of(other)),
    };
    api.answer(&asker, job).await
}

/// The events from now on, as server-sent events. A reader that is too slow loses events, and gets their number.
#[utoipa::path(
    get, path = "/v1/events",
    responses((status = 200, body = weir_switch::events::Event, content_type = "text/event-stream"))
)]
pub(super) async fn events(
    State(api): State<Api>,
    Reader(asker): Reader,
) -> Result<Response, Problem> {
    let mut response = written("text/event-stream", api.hub.read(&api, &asker).await?);
    response.extensions_mut().insert(Endless);
    Ok(response)
}
