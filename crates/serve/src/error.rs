//! Refusals in the form that OpenAI's interface has: `{"error": {"message", "type", "param", "code"}}`.

use crate::request::Model;
use bessemer_http::{Bytes, Response, StatusCode, header, response};
use serde_json::{Value, json};

/// A request that gets no answer of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// A sentence: what was wanted, what was found.
    pub message: String,
    /// Field of the request.
    pub param: Option<String>,
    /// Short name that programs know.
    pub code: Option<&'static str>,
}

impl ApiError {
    /// A field of the request that cannot be.
    pub fn field(param: &str, message: impl Into<String>) -> ApiError {
        let message = format!("{param}: {}", message.into());
        ApiError { status: StatusCode::BAD_REQUEST, message, param: Some(param.into()), code: None }
    }

    /// A request that cannot be.
    pub fn request(message: impl Into<String>) -> ApiError {
        ApiError { status: StatusCode::BAD_REQUEST, message: message.into(), param: None, code: None }
    }

    /// A prompt that does not fit.
    pub fn too_long(param: &str, tokens: usize, context: usize) -> ApiError {
        ApiError {
            code: Some("context_length_exceeded"),
            ..ApiError::field(
                param,
                format!(
                    "this model's context is {context} tokens, the prompt has {tokens}; shorten the prompt by {}",
                    tokens.saturating_sub(context)
                ),
            )
        }
    }

    /// Something that this server does not have.
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError { status: StatusCode::NOT_FOUND, ..ApiError::request(message) }
    }

    /// A model that this server does not have.
    pub(crate) fn no_model(name: &str, own: &[Model]) -> ApiError {
        let own: Vec<String> = own.iter().map(|model| format!("{:?}", model.name)).collect();
        let name: String = name.chars().take(200).collect();
        ApiError {
            code: Some("model_not_found"),
            param: Some("model".into()),
            ..ApiError::not_found(format!("there is no model {name:?}; this server has {}", own.join(", ")))
        }
    }

    /// No key, or another one.
    pub fn no_key() -> ApiError {
        ApiError {
            status: StatusCode::UNAUTHORIZED,
            code: Some("invalid_api_key"),
            ..ApiError::request("wanted the server's key as Authorization: Bearer KEY")
        }
    }

    /// No place in the queue.
    pub fn busy(waiting: usize) -> ApiError {
        ApiError {
            status: StatusCode::TOO_MANY_REQUESTS,
            code: Some("queue_full"),
            ..ApiError::request(format!("the queue is full ({waiting} requests); try again in a moment"))
        }
    }

    /// The server is about to leave.
    pub fn stopping() -> ApiError {
        ApiError {
            status: StatusCode::SERVICE_UNAVAILABLE,
            ..ApiError::request("the server is shutting down; send the request to another server")
        }
    }

    /// The model or the server failed.
    pub fn failed(message: impl Into<String>) -> ApiError {
        ApiError { status: StatusCode::INTERNAL_SERVER_ERROR, ..ApiError::request(message) }
    }

    /// The body.
    pub fn json(&self) -> Value {
        let kind = match self.status.as_u16() {
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }

    /// The answer.
    pub fn response(&self) -> Response<Bytes> {
        let mut answer = response(self.status, "application/json", self.json().to_string());
        let (name, value) = match self.status.as_u16() {
            429 | 503 => (header::RETRY_AFTER, "1"),
            401 => (header::WWW_AUTHENTICATE, "Bearer"),
            _ => return answer,
        };
        answer.headers_mut().insert(name, header::HeaderValue::from_static(value));
        answer
    }
}
