//! The one operation of STS that pods with a service account's token need: AssumeRoleWithWebIdentity, unsigned, at `/`
//! of the same server.

use crate::identity::{Identities, Session, TokenRefusal};
use http::{Extensions, HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use s3s::route::S3Route;
use s3s::{Body, S3Request, S3Response, S3Result, s3_error};
use std::collections::BTreeMap;

const FORM: &str = "application/x-www-form-urlencoded";
const LONGEST_REQUEST: usize = 64 * 1024;

pub(crate) struct Sts {
    pub(crate) identities: Identities,
}

#[async_trait::async_trait]
impl S3Route for Sts {
    fn is_match(&self, method: &Method, uri: &Uri, headers: &HeaderMap, _extensions: &mut Extensions) -> bool {
        method == Method::POST && uri.path() == "/" && headers.get(header::CONTENT_TYPE).is_some_and(|it| it == FORM)
    }

    /// The token in the body says who asks.
    async fn check_access(&self, _request: &mut S3Request<Body>) -> S3Result<()> {
        Ok(())
    }

    async fn call(&self, mut request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let body = request.input.store_all_limited(LONGEST_REQUEST).await.map_err(|_| s3_error!(IncompleteBody))?;
        let fields: BTreeMap<String, String> = form_urlencoded::parse(&body).into_owned().collect();
        let field = |name: &str| fields.get(name).map_or("", String::as_str);
        if field("Action") != "AssumeRoleWithWebIdentity" {
            return Err(s3_error!(NotImplemented, "STS here knows AssumeRoleWithWebIdentity only"));
        }
        let (status, text) = match self.identities.assume_role(field("RoleArn"), field("WebIdentityToken")) {
            Ok(session) => (StatusCode::OK, success(&session, field("RoleArn"), field("RoleSessionName"))),
            Err(TokenRefusal::AccessDenied) => (StatusCode::FORBIDDEN, refusal(TokenRefusal::AccessDenied)),
            Err(reason) => (StatusCode::BAD_REQUEST, refusal(reason)),
        };
        let mut response = S3Response::with_status(Body::from(text), status);
        response.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/xml"));
        Ok(response)
    }
}

fn success(session: &Session, role: &str, name: &str) -> String {
    let Session { access_key_id, secret_access_key, token, until } = session;
    let until = chrono::DateTime::<chrono::Utc>::from(*until).format("%Y-%m-%dT%H:%M:%S%.3fZ");
    format!(
        "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
         <AssumeRoleWithWebIdentityResult>\
         <AssumedRoleUser><Arn>{role}/{name}</Arn><AssumedRoleId>AROATEST:{name}</AssumedRoleId></AssumedRoleUser>\
         <Credentials><AccessKeyId>{access_key_id}</AccessKeyId><SecretAccessKey>{secret_access_key}</SecretAccessKey>\
         <SessionToken>{token}</SessionToken><Expiration>{until}</Expiration></Credentials>\
         </AssumeRoleWithWebIdentityResult><ResponseMetadata><RequestId>test</RequestId></ResponseMetadata>\
         </AssumeRoleWithWebIdentityResponse>"
    )
}

fn refusal(reason: TokenRefusal) -> String {
    let message = match reason {
        TokenRefusal::AccessDenied => "Not authorized to perform sts:AssumeRoleWithWebIdentity",
        TokenRefusal::ExpiredTokenException => "Token expired",
        TokenRefusal::InvalidIdentityToken => "No OpenIDConnect provider found for this token",
    };
    format!(
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type>\
         <Code>{reason:?}</Code><Message>{message}</Message></Error><RequestId>test</RequestId></ErrorResponse>"
    )
}
