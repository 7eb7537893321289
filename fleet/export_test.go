package fleet

// Handed is how many handed-over bookings the member keeps.
func Handed(m *Member) int {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	return len(m.handed)
}
