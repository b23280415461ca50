//! Requests that change something: the same changes that the command line can make.

use std::fmt::Display;
use std::path::PathBuf;

use axum::extract::{Query, Request, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use weir_config::reload::Difference;
use weir_config::{
    FilterRule, FilterRules, GroupConfig, PortName, SecurityGroup, TemplateName, VifChanges,
    VifConfig, cost,
};
use weir_switch::control::{
    ControlHandler, Extent, Put, Refusal, ReloadOutcome, Request as Ask, Response as Answer,
};

use crate::api::{Answered, Api, Asker, Asks, Named, Writer, body, json, parsed, shown, text};
use crate::problem::{Bad, Conflict, Missing, NotAllowed, Problem};

/// The change is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Done {
    /// A note about the change.
    pub note: Option<String>,
}

/// The source of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConfigurationSource {
    /// The absolute path of the file, if weir was started with one.
    #[schema(value_type = Option<String>)]
    pub path: Option<PathBuf>,
}

/// A configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConfigurationText {
    /// The text, as TOML.
    pub text: String,
}

/// The result of a reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reloaded {
    /// The changes that the configuration would make, before any was made.
    pub difference: Difference,
    /// The changes that were made.
    pub outcome: ReloadOutcome,
}

/// The measurement of the stages of a packet's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Stages {
    /// True if it is on.
    pub on: bool,
}

/// The extent of a reload.
#[derive(Debug, Clone, Copy, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HowMuch {
    /// Changes that are possible are made, although others are not.
    #[serde(default)]
    partly: bool,
    /// Makes no change, and refuses a configuration that differs from what runs.
    #[serde(default)]
    unchanged: bool,
}

impl Api {
    /// Makes a change.
    async fn change(
        &self,
        asker: &Asker,
        ask: impl FnOnce() -> Result<Ask, Problem> + Send + 'static,
    ) -> Response {
        self.change_of(asker, |_| ask()).await
    }

    /// Makes a change that depends on the switch.
    async fn change_of(
        &self,
        asker: &Asker,
        ask: impl FnOnce(&dyn ControlHandler) -> Result<Ask, Problem> + Send + 'static,
    ) -> Response {
        self.answer(asker, |handler| shown(handler.handle(ask(handler)?))).await
    }

    /// Asks about the configuration that the request sends, whose `cost` is bounded.
    async fn configured(
        &self,
        writer: Writer,
        request: Request,
        cost: fn(&str) -> u64,
        ask: impl FnOnce(String) -> Ask + Send + 'static,
    ) -> Answered {
        let (_, asker) = writer.compiles();
        let cost_max = self.access.configuration_cost_max(asker.caller);
        let bytes = body(&asker, request).await?;
        let job = move |handler: &dyn ControlHandler| {
            shown(handler.handle(ask(text(&bytes, cost, cost_max)?)))
        };
        Ok(self.answer(&asker, job).await)
    }
}

/// The request that shows an interface in the form in which it is sent.
const VIF_EXAMPLE: &str = "a `config` of GET /v1/vifs";

/// A template for the interface of a request.
#[derive(Debug, Clone, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Under {
    /// The template of the keys that the body leaves out. Without a template the body has all keys.
    template: Option<TemplateName>,
}

type MaybeUnder = Result<Query<Under>, axum::extract::rejection::QueryRejection>;

/// The template that a request names.
fn template_of(under: MaybeUnder) -> Result<Option<TemplateName>, Problem> {
    let Query(Under { template }) = under.map_err(|error| Problem::bad(error.body_text()))?;
    Ok(template)
}

/// The interface of a request: all of it, or the keys that differ from `template`.
fn wanted(
    handler: &dyn ControlHandler,
    bytes: &[u8],
    template: Option<TemplateName>,
    name: Option<PortName>,
) -> Result<Box<VifConfig>, Problem> {
    const EXAMPLE: &str = "{\"name\":\"web0\",\"vlan\":{\"access\":10}}";
    let Some(template) = template else { return parsed(bytes, VIF_EXAMPLE) };
    let mut keys: Map<String, Value> = parsed(bytes, EXAMPLE)?;
    keys.remove("template");
    let named = keys.get("name").cloned().map(serde_json::from_value::<PortName>).transpose();
    let named = named.map_err(|error| Problem::bad(error.to_string()))?;
    let Some(name) = named.or(name) else {
        return Err(Problem::bad("the request's body has no `name`").with_help(EXAMPLE));
    };
    match handler.handle(Ask::VifOfTemplate { template, name, keys }) {
        Answer::Vif { config } => Ok(config),
        other => Err(Problem::of(other)),
    }
}

/// Adds an interface.
#[utoipa::path(
    post, path = "/v1/vifs", params(Under), request_body = VifConfig,
    responses((status = 200, body = Done), Bad, NotAllowed, Missing, Conflict)
)]
pub(super) async fn add_vif(writer: Writer, under: MaybeUnder, request: Request) -> Answered {
    let template = template_of(under)?;
    let (api, asker) = writer.compiles();
    let bytes = body(&asker, request).await?;
    let ask = move |handler: &dyn ControlHandler| {
        Ok(Ask::VifAdd { config: wanted(handler, &bytes, template, None)? })
    };
    Ok(api.change_of(&asker, ask).await)
}

/// Refuses a body that names another one than the path.
fn is_one<N: PartialEq + Display>(path: &N, body: &N) -> Result<(), Problem> {
    let detail = || format!("the path names {path}, and the request's body {body}");
    let other = || Problem::bad(detail()).with_help("send one name in both places");
    (path == body).then_some(()).ok_or_else(other)
}

/// Makes an interface have these settings: adds it, or changes the existing one to exactly the settings sent. Nothing
/// changes if a key that differs cannot change under traffic.
#[utoipa::path(
    put, path = "/v1/vifs/{vif}", params(("vif" = PortName, Path), Under), request_body = VifConfig,
    responses((status = 200, body = Put), Bad, NotAllowed, Missing, Conflict)
)]
pub(super) async fn put_vif(
    writer: Writer,
    Named(name): Named,
    under: MaybeUnder,
    request: Request,
) -> Answered {
    let template = template_of(under)?;
    let (api, asker) = writer.compiles();
    let bytes = body(&asker, request).await?;
    let job = move |handler: &dyn ControlHandler| {
        let config = wanted(handler, &bytes, template, Some(name.clone()))?;
        is_one(&name, &config.name)?;
        shown(handler.handle(Ask::VifPut { config }))
    };
    Ok(api.answer(&asker, job).await)
}

/// Changes an interface in use. Settings that are not named stay as they are.
#[utoipa::path(
    patch, path = "/v1/vifs/{vif}", params(("vif" = PortName, Path)), request_body = VifChanges,
    responses((status = 200, body = Done), Bad, NotAllowed, Missing, Conflict)
)]
pub(super) async fn change_vif(
    Writer(api, asker): Writer,
    Named(name): Named,
    request: Request,
) -> Answered {
    const EXAMPLE: &str = "{\"latency_budget\":{\"set\":\"1ms\"}}";
    let bytes = body(&asker, request).await?;
    let ask = move || Ok(Ask::VifSet { name, changes: parsed(&bytes, EXAMPLE)? });
    Ok(api.change(&asker, ask).await)
}

/// The treatment of a missing interface or group.
#[derive(Debug, Clone, Copy, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Removes {
    /// A missing one is no error.
    #[serde(default)]
    if_exists: bool,
}

/// Removes an interface; its guest is disconnected.
#[utoipa::path(
    delete, path = "/v1/vifs/{vif}", params(("vif" = PortName, Path), Removes),
    responses((status = 200, body = Done), NotAllowed, Missing, Conflict)
)]
pub(super) async fn remove_vif(
    writer: Writer,
    Named(name): Named,
    removes: Asks<Removes>,
) -> Answered {
    removed(writer, removes, Ask::VifDel { name }).await
}

async fn removed(Writer(api, asker): Writer, removes: Asks<Removes>, ask: Ask) -> Answered {
    let Query(Removes { if_exists }) = removes.map_err(|error| Problem::bad(error.body_text()))?;
    let job = move |handler: &dyn ControlHandler| match handler.handle(ask) {
        Answer::Error { kind: Refusal::NotFound, message, .. } if if_exists => {
            Ok(json(&Done { note: Some(message) }))
        }
        answer => shown(answer),
    };
    Ok(api.answer(&asker, job).await)
}

/// Makes a group exist with these rules: adds it, or changes the existing one to exactly what is sent. Connections that
/// the new rules forbid end at once.
#[utoipa::path(
    put, path = "/v1/groups/{group}", params(("group" = SecurityGroup, Path)),
    request_body = GroupConfig,
    responses((status = 200, body = Done), Bad, NotAllowed, Conflict)
)]
pub(super) async fn put_group(
    Writer(api, asker): Writer,
    Named(name): Named<SecurityGroup>,
    request: Request,
) -> Answered {
    const EXAMPLE: &str = "{\"name\":\"web\",\"rules\":[\"in tcp 80,443 from any\"]}";
    let bytes = body(&asker, request).await?;
    let ask = move || {
        let group: GroupConfig = parsed(&bytes, EXAMPLE)?;
        is_one(&name, &group.name)?;
        Ok(Ask::GroupPut { group })
    };
    Ok(api.change(&asker, ask).await)
}

/// Removes a group, unless an interface, a rule or an ID names it.
#[utoipa::path(
    delete, path = "/v1/groups/{group}", params(("group" = SecurityGroup, Path), Removes),
    responses((status = 200, body = Done), NotAllowed, Missing, Conflict)
)]
pub(super) async fn remove_group(
    writer: Writer,
    Named(name): Named<SecurityGroup>,
    removes: Asks<Removes>,
) -> Answered {
    removed(writer, removes, Ask::GroupDel { name }).await
}

/// Replaces all filter rules of an interface or an uplink at once.
#[utoipa::path(
    put, path = "/v1/ports/{port}/filter", params(("port" = PortName, Path)),
    request_body = Vec<FilterRule>,
    responses((status = 200, body = Done), Bad, NotAllowed, Missing, Conflict)
)]
pub(super) async fn set_filter(writer: Writer, Named(name): Named, request: Request) -> Answered {
    const EXAMPLE: &str = "[{\"direction\":\"tx\",\"match\":\"port 25\",\"action\":\"drop\"}]";
    let (api, asker) = writer.compiles();
    let bytes = body(&asker, request).await?;
    let ask = move || {
        let FilterRules(rules) = parsed(&bytes, EXAMPLE)?;
        Ok(Ask::FilterSet { name, rules })
    };
    Ok(api.change(&asker, ask).await)
}

/// The changes that a configuration would make. Nothing is changed. Only for users who may write: reading a
/// configuration costs as much as its text asks for.
#[utoipa::path(
    post, path = "/v1/configuration/difference",
    request_body(content = String, content_type = "application/toml", description = "As weir.toml."),
    responses((status = 200, body = weir_config::reload::Difference), NotAllowed, Conflict)
)]
pub(super) async fn difference(
    State(api): State<Api>,
    writer: Writer,
    request: Request,
) -> Answered {
    api.configured(writer, request, cost::to_read, |text| Ask::Diff { text }).await
}

/// A configuration, changed to the running state: its comments and its order stay. Nothing is changed. Only for users
/// who may write, as the difference.
#[utoipa::path(
    post, path = "/v1/configuration/saved",
    request_body(content = String, content_type = "application/toml", description = "As weir.toml."),
    responses((status = 200, body = ConfigurationText), NotAllowed, Conflict)
)]
pub(super) async fn saved(State(api): State<Api>, writer: Writer, request: Request) -> Answered {
    api.configured(writer, request, cost::to_edit, |text| Ask::Saved { text }).await
}

/// Changes the switch to a configuration. `outcome` tells whether it did.
#[utoipa::path(
    put, path = "/v1/configuration", params(HowMuch),
    request_body(content = String, content_type = "application/toml", description = "As weir.toml."),
    responses((status = 200, body = Reloaded), Bad, NotAllowed, Conflict)
)]
pub(super) async fn reload(
    State(api): State<Api>,
    writer: Writer,
    how_much: Asks<HowMuch>,
    request: Request,
) -> Answered {
    let Query(how_much) = how_much.map_err(|error| Problem::bad(error.body_text()))?;
    let extent = match how_much {
        HowMuch { unchanged: true, .. } => Extent::Nothing,
        HowMuch { partly: true, .. } => Extent::Possible,
        _ => Extent::Whole,
    };
    api.configured(writer, request, cost::to_read, move |text| Ask::Reload { text, extent }).await
}

/// Replaces this weir with the program that is now installed. This weir then ends.
#[utoipa::path(
    post, path = "/v1/upgrade",
    responses((status = 200, body = Done), NotAllowed, Conflict)
)]
pub(super) async fn upgrade(Writer(api, asker): Writer) -> Response {
    api.change(&asker, || Ok(Ask::Upgrade)).await
}

/// The connections that are meant.
#[derive(Debug, Clone, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Flushed {
    /// The interface, or the network whose interfaces are meant. A name of both stands for the
    /// interface. Without a name, the connections of all interfaces are meant.
    of: Option<String>,
}

/// Forgets connections of interfaces in groups. Connections that the rules would let one of their
/// ends open go on.
#[utoipa::path(
    delete, path = "/v1/connections", params(Flushed),
    responses((status = 200, body = Done), Bad, NotAllowed, Missing)
)]
pub(super) async fn flush(Writer(api, asker): Writer, flushed: Asks<Flushed>) -> Answered {
    let Query(Flushed { of }) = flushed.map_err(|error| Problem::bad(error.body_text()))?;
    Ok(api.change(&asker, move || Ok(Ask::Flush { of })).await)
}

/// Begins or ends the measurement of the costs of a packet's stages.
#[utoipa::path(
    put, path = "/v1/stages", request_body = Stages,
    responses((status = 200, body = Done), Bad, NotAllowed)
)]
pub(super) async fn stages(Writer(api, asker): Writer, request: Request) -> Answered {
    let bytes = body(&asker, request).await?;
    let ask = move || {
        let Stages { on } = parsed(&bytes, "{\"on\":true}")?;
        Ok(Ask::Stages { on })
    };
    Ok(api.change(&asker, ask).await)
}
