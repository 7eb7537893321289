// Package kube holds what is shipped for Kubernetes against a real API server.
package kube
