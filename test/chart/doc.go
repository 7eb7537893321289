// Package chart holds what is shipped for Kubernetes against what it must fit: the
// chart's schema against the picker's own settings. What only a real API server can
// say is in package kube, behind its build tag.
package chart
