//! stub
use crate::admin::PostgresAdmin;
use posthaste::admin::AdminError;
use posthaste::sink::Finding;
/// Bounds
#[derive(Debug, Clone, Default)]
pub struct Bounds {}
impl PostgresAdmin {
    /// x
    pub async fn doctor_with(&self, _bounds: &Bounds) -> Result<Vec<Finding>, AdminError> {
        Ok(Vec::new())
    }
}
